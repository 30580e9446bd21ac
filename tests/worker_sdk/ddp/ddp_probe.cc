// SPDX-License-Identifier: Apache-2.0
// Answers one question per input line, for the comparisons with PyTorch (compare_*.py):
//   sampler N WORLD RANK SHUFFLE SEED DROP_LAST EPOCH          → the rank's indices
//   first COUNT:DTYPE…                                         → buckets, "|" between them
//   rebuild FIRST_BYTES CAP_BYTES COUNT:DTYPE:ARRIVAL_INDEX…   → likewise; listed in arrival order
//   schedule STEPS cosine BASE MIN TOTAL | linear BASE START END TOTAL | step BASE GAMMA SIZE |
//            warmup BASE MIN START WARMUP TOTAL                → the rates of steps 0, 1, …
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "worker_sdk/ddp/bucket_plan.h"
#include "worker_sdk/ddp/distributed_sampler.h"
#include "worker_sdk/ddp/lr_schedule.h"

using namespace ddprun;

namespace {

const std::map<std::string, DType> kDTypes = {
    {"f32", DType::kFloat32}, {"f64", DType::kFloat64}, {"f16", DType::kFloat16}};

void print(const BucketPlan& plan) {
  for (std::size_t b = 0; b < plan.size(); ++b) {
    if (b > 0) std::cout << "| ";
    for (const std::size_t index : plan[b]) std::cout << index << ' ';
  }
  std::cout << '\n';
}

void answer_sampler(std::istream& in) {
  std::int64_t n = 0;
  int world = 0, rank = 0;
  SamplerOptions options;
  std::uint64_t epoch = 0;
  in >> n >> world >> rank >> options.shuffle >> options.seed >> options.drop_last >> epoch;
  for (const std::int64_t i : DistributedSampler(n, world, rank, options).indices(epoch)) {
    std::cout << i << ' ';
  }
  std::cout << '\n';
}

ParameterSpec read_parameter(std::istream& item) {
  std::string count, dtype;
  std::getline(item, count, ':');
  std::getline(item, dtype, ':');
  return {.name = "p", .count = std::stoul(count), .dtype = kDTypes.at(dtype)};
}

void answer_first(std::istream& in) {
  std::vector<ParameterSpec> parameters;
  for (std::string text; in >> text;) {
    std::istringstream item(text);
    parameters.push_back(read_parameter(item));
  }
  print(plan_without_order(parameters));
}

void answer_rebuild(std::istream& in) {
  BucketLimits limits;
  in >> limits.first_bytes >> limits.cap_bytes;
  std::map<std::size_t, ParameterSpec> by_index;
  std::vector<std::size_t> arrival;
  for (std::string text; in >> text;) {
    std::istringstream item(text);
    const ParameterSpec parameter = read_parameter(item);
    std::size_t index = 0;
    item >> index;
    by_index[index] = parameter;
    arrival.push_back(index);
  }
  std::vector<ParameterSpec> parameters;
  for (const auto& [index, parameter] : by_index) parameters.push_back(parameter);
  print(plan_by_arrival(parameters, arrival, limits));
}

double number(std::istream& in) {
  std::string text;  // a stream doesn't read 17 digits back to the same bit everywhere
  in >> text;
  return std::stod(text);
}

std::uint64_t steps(std::istream& in) {
  std::uint64_t count = 0;
  in >> count;
  return count;
}

void answer_schedule(std::istream& in) {
  const std::uint64_t num_steps = steps(in);
  std::string kind;
  in >> kind;
  const double base = number(in);
  const auto print_all = [&](auto rate) {
    for (std::uint64_t step = 0; step < num_steps; ++step) std::cout << rate(step) << ' ';
  };
  std::cout << std::setprecision(std::numeric_limits<double>::max_digits10);
  if (kind == "cosine") {
    const double min = number(in);
    const std::uint64_t total = steps(in);
    print_all([&](auto step) { return cosine_lr(base, min, total, step); });
  } else if (kind == "linear") {
    const double start = number(in), end = number(in);
    const std::uint64_t total = steps(in);
    print_all([&](auto step) { return linear_lr(base, start, end, total, step); });
  } else if (kind == "step") {
    const double gamma = number(in);
    const std::uint64_t size = steps(in);
    print_all([&](auto step) { return step_lr(base, gamma, size, step); });
  } else if (kind == "warmup") {
    WarmupCosine schedule{.base_lr = base};
    schedule.min_lr = number(in);
    schedule.warmup_start_factor = number(in);
    schedule.warmup_steps = steps(in);
    schedule.total_steps = steps(in);
    print_all([&](auto step) { return lr_at(schedule, step); });
  }
  std::cout << '\n';
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string question;
    in >> question;
    if (question == "sampler") answer_sampler(in);
    if (question == "first") answer_first(in);
    if (question == "rebuild") answer_rebuild(in);
    if (question == "schedule") answer_schedule(in);
    std::cout.flush();
  }
}
