"""The tables of a page in Markdown, made from the files of `experiments/results/`.

    python -m experiments.report [--check] [PAGE.md ...] [--results DIRECTORY]

A page has a table where it has these two lines, and what is between them is written anew by each run:

    <!-- generated: NAME -->
    <!-- end -->

`experiments.report.sections` lists the names. With --check nothing is written: the command says which table is not what
the files say, and ends with exit code 1. Without a page it is README.md and experiments/README.md. Nothing is measured.
"""
