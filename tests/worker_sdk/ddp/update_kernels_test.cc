// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/update_kernels.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/catch.h"

using namespace ddprun;

namespace {

using Values = std::vector<float>;

struct Arrays {
  Values values, gradients, first, second;
};

Arrays random_arrays(std::size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Arrays made{Values(count), Values(count), Values(count), Values(count)};
  for (std::size_t i = 0; i < count; ++i) {
    made.values[i] = normal(random);
    made.gradients[i] = normal(random);
    made.first[i] = normal(random);
    made.second[i] = std::abs(normal(random));
  }
  return made;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_bits(const Arrays& a, const Arrays& b) {
  return same_bits(a.values, b.values) && same_bits(a.gradients, b.gradients) &&
         same_bits(a.first, b.first) && same_bits(a.second, b.second);
}

std::vector<AdamStep> adam_steps() {
  return {
      {}, {.weight_decay = 0.1F}, {.gradient_factor = -1, .value_factor = 0.99F, .root_factor = 3}};
}

std::vector<SgdStep> sgd_steps() {
  std::vector<SgdStep> steps;
  for (const bool has_momentum : {false, true}) {
    for (const float weight_decay : {0.F, 0.1F}) {
      for (const bool nesterov : {false, true}) {
        steps.push_back({.gradient_factor = nesterov ? 1.F : -1.F,
                         .weight_decay = weight_decay,
                         .momentum = 0.9F,
                         .gradient_share = 0.8F,
                         .lr = 0.1F,
                         .has_momentum = has_momentum,
                         .nesterov = nesterov});
      }
    }
  }
  return steps;
}

// The elements from `begin` on.
void adam(const UpdateKernels& kernels, const AdamStep& step, Arrays& of, std::size_t begin,
          std::size_t count) {
  kernels.adam(step, of.values.data() + begin, of.gradients.data() + begin, of.first.data() + begin,
               of.second.data() + begin, count);
}

void sgd(const UpdateKernels& kernels, const SgdStep& step, Arrays& of, std::size_t begin,
         std::size_t count) {
  kernels.sgd(step, of.values.data() + begin, of.gradients.data() + begin,
              step.has_momentum ? of.first.data() + begin : nullptr, count);
}

}  // namespace

TEST_CASE("UpdateKernels: every version gives the same bits, in whatever pieces") {
  constexpr std::size_t kCount = 100;
  const auto check = [](const auto& update, const auto& step) {
    Arrays expected = random_arrays(kCount);
    update(*available_update_kernels().front(), step, expected, 0, kCount);
    REQUIRE_FALSE(same_bits(expected.values, random_arrays(kCount).values));
    for (const UpdateKernels* kernels : available_update_kernels()) {
      INFO(kernels->name);
      for (const std::size_t cut : {0, 1, 15, 16, 17, 50, 99}) {
        Arrays found = random_arrays(kCount);
        update(*kernels, step, found, 0, cut);
        update(*kernels, step, found, cut, kCount - cut);
        CHECK(same_bits(found, expected));
      }
    }
  };
  for (const AdamStep& step : adam_steps()) check(adam, step);
  for (const SgdStep& step : sgd_steps()) check(sgd, step);
}

TEST_CASE("UpdateKernels: Adam's update is the paper's") {
  for (const AdamStep& step : adam_steps()) {
    const Arrays before = random_arrays(40);
    Arrays after = before;
    adam(update_kernels(), step, after, 0, 40);
    for (std::size_t i = 0; i < 40; ++i) {
      const double g = double{before.gradients[i]} * step.gradient_factor +
                       double{step.weight_decay} * before.values[i];
      const double m = 0.9 * before.first[i] + 0.1 * g;
      const double v = 0.999 * before.second[i] + 0.001 * g * g;
      const double value = double{before.values[i]} * step.value_factor -
                           1e-3 * m / (std::sqrt(v) * step.root_factor + 1e-8);
      CHECK_THAT(after.first[i], Catch::Matchers::WithinAbs(m, 1e-6));
      CHECK_THAT(after.second[i], Catch::Matchers::WithinAbs(v, 1e-6));
      CHECK_THAT(after.values[i], Catch::Matchers::WithinAbs(value, 1e-6));
    }
  }
}

TEST_CASE("UpdateKernels: SGD's update is torch.optim's") {
  for (const SgdStep& step : sgd_steps()) {
    const Arrays before = random_arrays(40);
    Arrays after = before;
    sgd(update_kernels(), step, after, 0, 40);
    for (std::size_t i = 0; i < 40; ++i) {
      const double g = double{before.gradients[i]} * step.gradient_factor +
                       double{step.weight_decay} * before.values[i];
      const double m = 0.9 * before.first[i] + 0.8 * g;
      const double change = !step.has_momentum ? g : step.nesterov ? g + 0.9 * m : m;
      CHECK_THAT(after.values[i],
                 Catch::Matchers::WithinAbs(before.values[i] - 0.1 * change, 1e-6));
      CHECK_THAT(after.first[i],
                 Catch::Matchers::WithinAbs(step.has_momentum ? m : before.first[i], 1e-6));
    }
  }
}

TEST_CASE("UpdateKernels: an infinite value stays without weight decay") {
  Values value{INFINITY}, gradient{1}, average{0}, square{0};
  update_kernels().adam({}, value.data(), gradient.data(), average.data(), square.data(), 1);
  CHECK(value.front() == INFINITY);
  CHECK_THAT(average.front(), Catch::Matchers::WithinAbs(0.1, 1e-6));
}
