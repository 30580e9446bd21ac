// SPDX-License-Identifier: Apache-2.0
// Runs adadelta_step for the comparison with torch.optim.Adadelta (adadelta_test.py). Input: "f32"
// or "f64", lr, number of elements, number of steps; initial parameters; each step's gradients.
// Prints the parameters after each step.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "apps/train/adadelta_step.h"

namespace {

template <typename Real>
void run(std::istream& in) {
  ddprun::train::AdadeltaOptions options;
  std::size_t count = 0, num_steps = 0;
  in >> options.lr >> count >> num_steps;
  std::vector<Real> parameter(count), gradient(count), squares(count), deltas(count);
  for (Real& value : parameter) in >> value;
  for (std::size_t step = 0; step < num_steps; ++step) {
    for (Real& value : gradient) in >> value;
    ddprun::train::adadelta_step(parameter.data(), gradient.data(), squares.data(), deltas.data(),
                                 count, options);
    for (const Real value : parameter) std::printf("%.17g ", static_cast<double>(value));
    std::printf("\n");
  }
}

}  // namespace

int main() {
  std::string dtype;
  std::cin >> dtype;
  dtype == "f32" ? run<float>(std::cin) : run<double>(std::cin);
}
