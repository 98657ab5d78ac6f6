"""Studies: from a spec to trained runs to conclusions.

entry      compare, sweep and load for Python; given: the objects a program passes to them
specs      what to run: specs and their parts, read from TOML, a command line or a grid
runs       training a spec's methods, run directories, and several runs as one study
audits     existing predictions of any system
analysis   metrics across clients, differences, the harm ledger, gaps, sweeps, sentences
findings   all of this for one study
tables     the same as text for a terminal
methods    documentation of the methods
"""
