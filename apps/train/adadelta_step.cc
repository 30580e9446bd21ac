// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 -fno-math-errno in every build: the loop below must become vector code.
#include "apps/train/adadelta_step.h"

#include <cmath>

namespace ddprun::train {
namespace {

template <typename Real>
[[gnu::always_inline]] inline void update(Real* __restrict parameter,
                                          const Real* __restrict gradient,
                                          Real* __restrict square_average,
                                          Real* __restrict delta_average, std::size_t count,
                                          const AdadeltaOptions& options) {
  const Real lr = static_cast<Real>(options.lr), eps = static_cast<Real>(options.eps);
  const Real rho = static_cast<Real>(options.rho), rest = static_cast<Real>(1 - options.rho);
  for (std::size_t i = 0; i < count; ++i) {
    const Real g = gradient[i];
    const Real square = rho * square_average[i] + rest * g * g;
    const Real delta = std::sqrt(delta_average[i] + eps) / std::sqrt(square + eps) * g;
    square_average[i] = square;
    delta_average[i] = rho * delta_average[i] + rest * delta * delta;
    parameter[i] -= lr * delta;
  }
}

#if defined(__x86_64__)
#define DDPRUN_FOR_EACH_CPU [[gnu::target_clones("arch=x86-64-v3", "default")]]
#else
#define DDPRUN_FOR_EACH_CPU
#endif

DDPRUN_FOR_EACH_CPU void update_floats(float* parameter, const float* gradient,
                                       float* square_average, float* delta_average,
                                       std::size_t count, const AdadeltaOptions& options) {
  update(parameter, gradient, square_average, delta_average, count, options);
}

DDPRUN_FOR_EACH_CPU void update_doubles(double* parameter, const double* gradient,
                                        double* square_average, double* delta_average,
                                        std::size_t count, const AdadeltaOptions& options) {
  update(parameter, gradient, square_average, delta_average, count, options);
}

}  // namespace

template <typename Real>
void adadelta_step(Real* parameter, const Real* gradient, Real* square_average, Real* delta_average,
                   std::size_t count, const AdadeltaOptions& options) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    update_floats(parameter, gradient, square_average, delta_average, count, options);
  } else {
    update_doubles(parameter, gradient, square_average, delta_average, count, options);
  }
}

template void adadelta_step(float*, const float*, float*, float*, std::size_t,
                            const AdadeltaOptions&);
template void adadelta_step(double*, const double*, double*, double*, std::size_t,
                            const AdadeltaOptions&);

}  // namespace ddprun::train
