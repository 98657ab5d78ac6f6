"""Studies: from what is to be run to what can be said about it.

entry      compare, sweep and load, as Python calls them; given: what a program gives to them
specs      what to run: specs and their parts, read from TOML, a command line or a grid
runs       training what a spec asks for, run directories, and runs looked at together
audits     predictions that are there already
analysis   numbers across clients, differences, the harm ledger, gaps, sweeps, sentences
findings   all of that about one study
tables     the same for a terminal
methods    what the library says about its methods
"""
