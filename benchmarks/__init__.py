"""What shredsaver costs, measured beside LangGraph's own savers and stores: ``python -m benchmarks --help``.

Ours and the baseline take turns within one run, on the same disk, with the same durability, and what is reported is the
ratio of the two, pair by pair. Absolute times tell about a machine; ratios tell about the software.
"""
