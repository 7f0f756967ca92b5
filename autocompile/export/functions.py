"""The functions that an exported script in plain torch is made of, as text."""

from __future__ import annotations

__all__ = [
    "COMPILE_BLOCK",
    "FILTERED",
    "FORWARD",
    "IN_MODE",
    "OPTIMIZER_STEP",
    "OWN_STATE",
    "RL_FORWARD",
    "TRAIN_STEP",
]

# Dynamo passes over functions of torch.nn that it does not meet within another one.
COMPILE_BLOCK = '''CODES = {}


def compile_block(block, **arguments):
    """Compile a module in place, one of torch's own classes too."""
    if not str(type(block).forward.__module__).startswith("torch.nn."):
        torch.nn.Module.compile(block, **arguments)
        return
    call = block._call_impl

    def called(*args, **given):
        return call(*args, **given)

    # Dynamo counts recompilations by code and its name: each structure has its own.
    structure = (str(block), *(tuple(p.shape) for p in block.parameters()))
    own = called.__code__.replace(co_name=f"block_{len(CODES)}")
    called.__code__ = CODES.setdefault(structure, own)
    block._compiled_call_impl = torch.compile(called, **arguments)
'''

FORWARD = '''def compile_forward(model):
    """The model with the settings: call it in place of the model, under torch.no_grad()."""
{prepare}    return {compiled}
'''

# An RLModule's own compile() takes other arguments, and its public forward_* methods switch
# between train and eval on each call: the function beneath is what RLlib compiles too.
RL_FORWARD = '''def compile_{phase}(model):
    """Apply the settings to what model.{phase}() runs, in place."""
{prepare}    function = model._{phase}
    model._{phase} = {compiled}
    return model
'''

# Optimizer.step breaks the graph by design, so it is wrapped.
OPTIMIZER_STEP = '''def compile_optimizer_step(optimizer):
    """The step with the settings: call it in place of optimizer.step()."""
{prepare}
    def step():
        optimizer.step()

    return {compiled}
'''

TRAIN_STEP = '''def compile_train_step(model, forward, loss, optimizer):
    """A training step with the settings: step(inputs) gives the loss.

    forward(inputs) gives the output, loss(output, inputs) a tensor with one number.
    """
{prepare}
    def step(inputs):
        optimizer.zero_grad(set_to_none=True)
        value = loss(forward(inputs), inputs)
        value.backward()
        optimizer.step()
        return value.detach()

    return {compiled}


def call_model(model, inputs):
    """Forward pass of a training step."""
    if hasattr(model, "forward_train"):  # an RLModule of RLlib
        return model.forward_train(inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)):
        return model(*inputs)
    return model(inputs)


def sum_of_outputs(output, inputs):
    """The sum of every floating output: put your own loss in its place."""
    leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
    return sum(x.float().sum() for x in leaves if x.requires_grad)
'''

# torch.compile takes the filter out of the dictionary that it is given.
FILTERED = '''def filtered(arguments, guard_filter):
    """The arguments with a filter of guards, in a dictionary of their own."""
    options = {**arguments.get("options", {}), "guard_filter_fn": guard_filter}
    return {**arguments, "options": options}
'''

IN_MODE = '''def in_mode(model, training, function):
    """The function with the model in the mode in which it was measured."""

    def call(*args, **kwargs):
        model.train(training)
        return function(*args, **kwargs)

    return call
'''

OWN_STATE = '''DEFAULTS = torch.get_num_threads(), torch.get_float32_matmul_precision()


def in_own_state(function, threads, precision):
    """The function with the threads and the precision that it was measured with: torch has one of
    each for the whole process, and the phases differ. What else runs has those of the last call.
    """

    def call(*args, **kwargs):
        torch.set_num_threads(threads or DEFAULTS[0])
        torch.set_float32_matmul_precision(precision or DEFAULTS[1])
        return function(*args, **kwargs)

    return call
'''
