"""Training several runs at once, stacked along one more dimension.

Single runs on a GPU, or with small models, spend most of their time waiting for Python. Runs of one
method that only differ in seeds, initial parameters and numeric hyper-parameters are therefore
trained together, each round in the same few tensor operations. A *stack* is a list of such runs;
its tensors have one more dimension in front, of length R, a row per run.

* Hyper-parameters that differ within a stack are tensors: clients find them in
  ``task.shared["varying"]``, server functions in the method itself.
* Cohorts are drawn once per seed, tasks and server steps are batched with ``torch.func.vmap``,
  clients of all runs are trained by the engine's ``exchange_runs``, and all models are evaluated in
  the same blocks of samples.
* What cannot be batched is done run by run: a server function that branches on values, a cohort of
  another size, a skipped client. If a method's client branches on a value, runs with different
  values of it are stacked separately. The log says so.
"""
