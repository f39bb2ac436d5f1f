"""Tuning: the search policy, the session around it, and what crosses their borders.

protocols   what tuning asks of search space, cost model, measurer and recorder
population  scored rows of several sketches, and the choice of a few of them
policy      the numbers of the search
search      which candidates to measure next
session     rounds, budget, resuming, the final comparison; progress: how far it is
asked       the keywords of a user's call; definition: what the user wrote, with them
subject     what is tuned, as its user named it; task: with its search space; recorder: trials in the database
callbacks   what a session tells; result: what it leaves behind
"""
