"""What a value can be, and where it comes from: the questions that rules about one expression ask.

    calls       how is this operation written?            `last_name`, `receiver`, `operand`, `operations`
    values      where does this come from? who uses it?   `values_of(module).origin`, `.uses`, `.passed`, `.built`
    makers      which operation made this?                `made_by`, `output_of`
    ranges      can this be zero, or negative?            `range_of`
    losses      is this part of a loss? is it tested?     `in_loss`, `differentiated`, `guarded`, `unguarded`
    gradients   can this require a gradient?              `takes_no_gradient`
    recording   does autograd record here?                `under_no_grad`, `turns_off`
    softmax     is this a softmax, however written?       `logits_of`, `peeled`, `weighed`
    modules     is this an nn.Module? does it learn?      `is_module`, `construction`, `has_state`, `learns`
    modes       does it behave differently in eval mode?  `class_has_mode`
    containers  which layers does this list or dict hold? `kept_layers`
    stacks      which layers run one after the other?     `stack_of`
    precision   is this half precision?                   `is_low`, `autocast_around`
    functions   which inputs of this Function are tensors? `functions_in`
    checkpoints what does this program save and load?     `saves`, `loads`, `uses`
    ranks       does this run on every rank?              `runs_on_every_rank`, `mentions_rank`

Where nothing is known the answer is None or False, and the rule that asked stays silent.
"""
