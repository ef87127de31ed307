/* cdp_optim_update() for ctypes, compiled into a library of its own by test_optimizers.sh. */
#define CDP_IMPLEMENTATION
#include "cdp.h"

/* Returns how many states the optimizer keeps, or -1 with the reason on stderr. x: lr, momentum,
   dampening, weight_decay, alpha, lr_decay; 0 is 0 here. flags: 1 nesterov, 2 amsgrad, 4 centered,
   8 fma. */
int update(int kind, uint64_t step, const double x[6], unsigned flags, float *param,
    float *const state[3], const float *grad, uint64_t count) {
    const cdp_optim o = {
        .kind = (cdp_optim_kind)kind,
        .step = step,
        .lr = x[0],
        .momentum = x[1] != 0 ? x[1] : CDP_OPTIM_ZERO,
        .dampening = x[2] != 0 ? x[2] : CDP_OPTIM_ZERO,
        .weight_decay = x[3] != 0 ? x[3] : CDP_OPTIM_ZERO,
        .alpha = x[4],
        .lr_decay = x[5],
        .nesterov = (flags & 1) != 0,
        .amsgrad = (flags & 2) != 0,
        .centered = (flags & 4) != 0,
        .fma = (flags & 8) != 0,
    };
    const cdp_optim_range r = {
        .param = param,
        .state = {state[0], state[1], state[2]},
        .grad = grad,
        .count = count,
    };
    if (cdp_optim_update(&o, &r) == CDP_OK) return (int)cdp_optim_states(&o);
    cdp_print_error(NULL);
    return -1;
}
