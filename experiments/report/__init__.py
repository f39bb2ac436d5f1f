"""The tables of a page in Markdown, made from the files of `experiments/results/` and from tables in the code.

    python -m experiments.report [--check] [PAGE.md ...] [--results DIRECTORY]

A page has a table where it has these two lines, and what is between them is written anew by each run:

    <!-- generated: NAME -->
    <!-- end -->

`experiments.report.sections` lists the names. With --check nothing is written: the command says which table is out of
date, and ends with exit code 1. Without a page it goes through those in the repository that have tables.
Nothing is measured.
"""
