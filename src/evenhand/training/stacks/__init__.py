"""Several runs at once: seeds and values of hyper-parameters as one more stacked dimension.

The points of a front are small: on a GPU, or for small models, a run waits for Python most of the
time. Runs of one method that differ in seeds, initial parameters and hyper-parameters that are
plain numbers are therefore trained together, each round in the same few tensor operations.
A *stack* is a list of such runs; everything in it has one more dimension in front, of length R, a
row for each run.

* Hyper-parameters that vary within a stack are tensors: clients find them in
  ``task.shared["varying"]``, server functions in the method itself.
* Cohorts are drawn once for each seed, tasks and server steps are batched with ``torch.func.vmap``,
  clients of all runs are trained by the engine's ``exchange_runs``, and all models are evaluated in
  the same blocks of samples.
* What cannot be batched is done run by run: a server function that looks at values, a cohort of
  another size, a client left out. Where a method's client looks at a value, runs with different
  values of it are stacked apart. The log says so.
"""
