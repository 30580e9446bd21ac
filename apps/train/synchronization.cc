// SPDX-License-Identifier: Apache-2.0
#include "apps/train/synchronization.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "apps/train/model.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/text.h"
#include "worker_sdk/ddp/async_parameters.h"
#include "worker_sdk/torch/model_averager.h"

namespace ddprun::train {
namespace {

// Local SGD: each rank steps alone, and every so many steps the models are averaged
// (docs/local-sgd.md).
class LocalSteps : public Synchronization {
 public:
  LocalSteps(const Options& options, Model& model, const Place& place)
      : options_(options),
        model_(model),
        communicator_(place.communicator),
        parameters_(model.parameters(), place.communicator) {}

  void before_step(std::uint64_t step) override { model_.set_alone(step >= options_.sync_after); }

  void after_step(std::uint64_t step) override {
    if (step < options_.sync_after) return;
    parameters_differ_ = rest_differs_ = true;
    if ((step + 1) % options_.sync_every != 0) return;
    average_parameters();
    if (options_.sync_optimizer) average_rest();
  }

  bool is_boundary(std::uint64_t step, bool epoch_begins) const override {
    return epoch_begins || step <= options_.sync_after || step % options_.sync_every == 0;
  }

  void settle() override {
    if (parameters_differ_) average_parameters();
    if (rest_differs_) average_rest();
  }

  SyncReport report() const override {
    return {.num_averagings = num_averagings_,
            .sent_bytes = sent_bytes_ + parameters_.sent_bytes()};
  }

 private:
  void average_parameters() {
    parameters_.average();
    parameters_differ_ = false;
    ++num_averagings_;
  }

  // Makes the averager anew each time: an optimiser may move its state from one step to the next.
  void average_rest() {
    ModelAverager rest(model_.rest_of_state(), communicator_);
    rest.average();
    sent_bytes_ += rest.sent_bytes();
    rest_differs_ = false;
  }

  const Options& options_;
  Model& model_;
  Communicator& communicator_;
  ModelAverager parameters_;
  // True if the ranks' values may differ. Equal ones aren't averaged, for rounding could change
  // them.
  bool parameters_differ_ = false, rest_differs_ = false;
  std::uint64_t num_averagings_ = 0;
  std::uint64_t sent_bytes_ = 0;  // without the parameters'
};

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

// Returns the part of `values` from `offset` on as a tensor of `like`'s shape, and advances
// `offset`.
at::Tensor next_part(std::vector<float>& values, std::size_t& offset, const at::Tensor& like) {
  float* data = values.data() + offset;
  offset += static_cast<std::size_t>(like.numel());
  return at::from_blob(data, like.sizes(), at::TensorOptions().dtype(at::kFloat));
}

// Asynchronous steps with bounded staleness (docs/async.md). Each rank adds its own step's change
// to the shared parameters, and goes on with their values at that time.
class AsyncSteps : public Synchronization {
 public:
  AsyncSteps(const Options& options, Model& model, const Place& place)
      : model_(model),
        communicator_(place.communicator),
        own_host_(host_beside(place, options)),
        parameters_(model.parameters()),
        values_(num_values_in(parameters_)),
        update_(values_.size()),
        shared_(own_host_ ? *own_host_ : place.communicator, values_.size(),
                {.staleness = options.staleness, .timeout = options.operation_timeout}) {}

  void begin_epoch() override {
    const c10::NoGradGuard no_grad;
    std::size_t offset = 0;
    for (const NamedTensor& each : parameters_)
      next_part(values_, offset, each.tensor).copy_(each.tensor);
    shared_.begin(values_);
    in_epoch_ = true;
    epoch_begin_ = Clock::now();
  }

  void before_step(std::uint64_t) override { model_.set_alone(true); }

  void after_step(std::uint64_t) override {
    read_model();
    const ExchangeReport report = shared_.exchange(update_, values_);
    write_model();
    ++num_exchanges_;
    sum_of_leads_ += report.lead;
    max_lead_ = std::max(max_lead_, report.lead);
    waited_ += report.waited;
  }

  bool is_boundary(std::uint64_t, bool epoch_begins) const override { return epoch_begins; }

  // Ends the epoch's asynchronous part. It isn't called between two steps of one part.
  void settle() override {
    if (!in_epoch_) return;
    trained_ += Clock::now() - epoch_begin_;
    shared_.finish(values_);
    write_model();
    in_epoch_ = false;
    ModelAverager rest(model_.rest_of_state(), communicator_);
    rest.average();
  }

  SyncReport report() const override {
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

 private:
  // Sets update_ to the changes of the step.
  void read_model() {
    const c10::NoGradGuard no_grad;
    std::size_t offset = 0, same = 0;
    for (const NamedTensor& each : parameters_) {
      next_part(update_, offset, each.tensor)
          .copy_(each.tensor)
          .sub_(next_part(values_, same, each.tensor));
    }
  }

  void write_model() {
    const c10::NoGradGuard no_grad;
    std::size_t offset = 0;
    for (const NamedTensor& each : parameters_) {
      each.tensor.copy_(next_part(values_, offset, each.tensor));
    }
  }

  Model& model_;
  Communicator& communicator_;
  // Made if NCCL is the job's backend: parameters still travel between hosts' memory. Null: it
  // isn't.
  const std::unique_ptr<Communicator> own_host_;
  const std::vector<NamedTensor> parameters_;
  std::vector<float> values_, update_;  // values at the last exchange; the step's change to them
  AsyncParameters shared_;
  bool in_epoch_ = false;

  std::uint64_t num_exchanges_ = 0, sum_of_leads_ = 0, max_lead_ = 0;
  std::chrono::nanoseconds waited_{0}, trained_{0};
  Clock::time_point epoch_begin_{};
};

}  // namespace

std::unique_ptr<Synchronization> make_synchronization(const Options& options, TrainedModel& model,
                                                      const Place& place) {
  if (!has_local_steps(options)) return std::make_unique<Synchronization>();
  auto& whole = dynamic_cast<Model&>(model);  // --parallel refuses local steps
  if (options.mode == ModeChoice::kAsync) {
    return std::make_unique<AsyncSteps>(options, whole, place);
  }
  return std::make_unique<LocalSteps>(options, whole, place);
}

}  // namespace ddprun::train
