"""Inspection of records and networks.

record    show, verify, explain and export of a stored record; estimate: a search by the cost model alone
network   explain of a network: kernels' times against the roofline; render: a network as text
"""
