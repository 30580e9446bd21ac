// SPDX-License-Identifier: Apache-2.0
// Adadelta's update rule in one pass over memory, as torch.optim.Adadelta computes it.
// Pure: no I/O, clock or thread.
#pragma once

#include <cstddef>

namespace ddprun::train {

struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
};

// Updates `parameter` and both running averages (zero at first) by one `gradient`. Each has `count`
// elements, and none overlap.
template <typename Real>
void adadelta_step(Real* parameter, const Real* gradient, Real* square_average, Real* delta_average,
                   std::size_t count, const AdadeltaOptions& options);

extern template void adadelta_step(float*, const float*, float*, float*, std::size_t,
                                   const AdadeltaOptions&);
extern template void adadelta_step(double*, const double*, double*, double*, std::size_t,
                                   const AdadeltaOptions&);

}  // namespace ddprun::train
