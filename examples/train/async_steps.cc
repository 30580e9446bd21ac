// SPDX-License-Identifier: Apache-2.0
#include "examples/train/async_steps.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/model_averager.h"

namespace ddprun::train {
namespace {

std::size_t num_values_in(const std::vector<NamedTensor>& tensors) {
  std::size_t count = 0;
  for (const NamedTensor& each : tensors) {
    if (each.tensor.scalar_type() != at::kFloat) {
      throw Error(ErrorCode::kUnsupported,
                  concat("--mode=async: ", each.name, " is not float32, as it has to be"));
    }
    count += static_cast<std::size_t>(each.tensor.numel());
  }
  return count;
}

std::unique_ptr<Communicator> host_beside(const Place& place, const Options& options) {
  if (place.communicator.backend() != "nccl") return nullptr;
  return place.session->make_communicator(BackendChoice::kHost,
                                          {.timeout = options.operation_timeout});
}

// `values` as a tensor of that shape, from `offset` on; moves it on.
at::Tensor next_part(std::vector<float>& values, std::size_t& offset, const at::Tensor& like) {
  float* data = values.data() + offset;
  offset += static_cast<std::size_t>(like.numel());
  return at::from_blob(data, like.sizes(), at::TensorOptions().dtype(at::kFloat));
}

}  // namespace

AsyncSteps::AsyncSteps(const Options& options, Model& model, const Place& place)
    : model_(model),
      communicator_(place.communicator),
      own_host_(host_beside(place, options)),
      parameters_(model.parameters()),
      values_(num_values_in(parameters_)),
      update_(values_.size()),
      shared_(own_host_ ? *own_host_ : place.communicator, values_.size(),
              {.staleness = options.staleness, .timeout = options.operation_timeout}) {}

void AsyncSteps::begin_epoch() {
  const c10::NoGradGuard no_grad;
  std::size_t offset = 0;
  for (const NamedTensor& each : parameters_)
    next_part(values_, offset, each.tensor).copy_(each.tensor);
  shared_.begin(values_);
  in_epoch_ = true;
  epoch_begin_ = Clock::now();
}

void AsyncSteps::before_step(std::uint64_t) { model_.set_alone(true); }

void AsyncSteps::after_step(std::uint64_t) {
  read_model();
  const ExchangeReport report = shared_.exchange(update_, values_);
  write_model();
  ++num_exchanges_;
  sum_of_leads_ += report.lead;
  max_lead_ = std::max(max_lead_, report.lead);
  waited_ += report.waited;
}

// What the step has changed.
void AsyncSteps::read_model() {
  const c10::NoGradGuard no_grad;
  std::size_t offset = 0, same = 0;
  for (const NamedTensor& each : parameters_) {
    next_part(update_, offset, each.tensor)
        .copy_(each.tensor)
        .sub_(next_part(values_, same, each.tensor));
  }
}

void AsyncSteps::write_model() {
  const c10::NoGradGuard no_grad;
  std::size_t offset = 0;
  for (const NamedTensor& each : parameters_) {
    each.tensor.copy_(next_part(values_, offset, each.tensor));
  }
}

bool AsyncSteps::is_boundary(std::uint64_t, bool epoch_begins) const { return epoch_begins; }

void AsyncSteps::settle() {
  if (!in_epoch_) return;
  trained_ += Clock::now() - epoch_begin_;
  shared_.finish(values_);
  write_model();
  in_epoch_ = false;
  ModelAverager rest(model_.rest_of_state(), communicator_);
  rest.average();
}

SyncReport AsyncSteps::report() const {
  const auto seconds = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  const auto steps = static_cast<double>(num_exchanges_);
  SyncReport report;
  report.num_averagings = num_exchanges_;
  report.sent_bytes = shared_.sent_bytes();
  report.max_lead = max_lead_;
  report.mean_lead = num_exchanges_ > 0 ? static_cast<double>(sum_of_leads_) / steps : 0;
  report.waited_seconds = seconds(waited_);
  report.steps_per_second = trained_.count() > 0 ? steps / seconds(trained_) : 0;
  return report;
}

}  // namespace ddprun::train
