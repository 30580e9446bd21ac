// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel's inside: what connects the Reducer to autograd. For its own sources
// alone: heavy.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker_sdk/ddp/ddp_rules.h"
#include "worker_sdk/ddp/device_steps.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/named_tensor.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun {

// For DeviceSteps, over the device's timed events.
class StreamEvent {
 public:
  explicit StreamEvent(c10::Device device)
      : device_(device), event_(device.type(), c10::EventFlag::BACKEND_DEFAULT) {}
  void record() { event_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_)); }
  bool has_passed() const { return event_.query(); }
  double seconds_since(const StreamEvent& earlier) const {
    return earlier.event_.elapsedTime(event_) / 1e3;
  }

 private:
  c10::Device device_;
  c10::Event event_;
};

class DdpBase::Impl {
 public:
  Impl(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options);
  ~Impl();

  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  void zero_grad();

  void begin_join(const JoinOptions& options);
  JoinResult finish_join();
  void leave_join();

  int no_sync_depth_ = 0;
  Reducer& reducer() { return *reducer_; }
  std::vector<std::string> gradient_order() const;
  void set_gradient_order(const std::vector<std::string>& names);
  StepStatistics statistics();
  void waited_for_data(Clock::duration time);
  void set_comm_hook(std::shared_ptr<CommHook> hook);
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // For the ShardedOptimizer, of which there is one at a time.
  Communicator& communicator() { return communicator_; }
  c10::Device device() const { return device_; }
  ZeroStage zero() const { return options_.zero; }
  bool has_averages() const { return has_averages_; }
  void set_has_optimizer(bool has) { has_optimizer_ = has; }
  bool has_optimizer() const { return has_optimizer_; }

 private:
  std::vector<ParameterSpec> trainable_parameters(const std::vector<NamedTensor>& parameters,
                                                  const std::set<const void*>& sparse);
  void make_slots();
  at::Tensor bytes_of_bucket(std::size_t number);
  void check_nobody_averages() const;
  void install_hook(std::size_t index, const at::Tensor& parameter);
  void on_gradient(std::size_t index);
  void check_no_nan(const at::Tensor& gradient, const std::string& name);
  void check_still_as_wrapped() const;
  void check_shards_are_used() const;
  void before_sending(std::size_t number);
  void forget_gradients();
  void put_into_slot(std::size_t index, bool is_complete = true);
  void copy_into_slot(std::size_t index, const at::Tensor& gradient);
  void mark_unused(const std::vector<std::size_t>& indices);
  void end_backward_later();
  void end_backward();
  void broadcast_buffers(int root);
  at::Tensor ask_for_usage();
  std::vector<std::uint8_t> used_anywhere(const at::Tensor& answer);
  void settle_unused(const std::vector<std::uint8_t>& used);
  void take_back_unused(const std::vector<std::uint8_t>& used);
  void form_final_buckets();
  void form_buckets(const std::vector<std::size_t>& order);
  JoinRound meet(JoinCall call);
  void shadow(const JoinRound& round);
  void scale_averages();
  void average_sparse_gradients();
  void check_nothing_is_new();
  void count_step();
  void count_device_steps();
  void tell_parts(const std::optional<StepParts>& parts);

  // Constant after construction.
  const torch::nn::Module& module_;
  Communicator& communicator_;
  const DdpOptions options_;
  const bool checks_nan_;
  std::vector<at::Tensor> parameters_;  // those that require a gradient; the reducer's indices
  std::vector<std::string> names_;
  std::vector<NamedTensor> sparse_;  // parameters whose gradients are sparse: in no bucket
  std::vector<NamedTensor> frozen_;  // parameters that require no gradient
  std::vector<at::Tensor> ignored_;  // parameters: only their gradients are forgotten
  std::vector<at::Tensor> buffers_;
  std::optional<torch_adapter::TensorBroadcast> buffer_broadcast_;  // from the first forward on
  std::vector<at::Tensor> state_;  // all parameters and buffers that are sent
  c10::Device device_ = c10::kCPU;
  std::optional<Reducer> reducer_;
  std::optional<ParameterUsage> usage_;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  struct Hook {
    Accumulator accumulator;  // second owner: the graph; kept, or the hook would go with the graph
    std::uintptr_t key;
  };
  class GradientHook;
  std::vector<Hook> hooks_;
  std::vector<torch::autograd::Node*> accumulators_;  // those of hooks_

  std::vector<at::Tensor> slots_;  // each gradient's place in its bucket; changed by the rebuild
  std::vector<std::uint8_t> multiplied_;  // by index: its slot has the reducer's factor already
  int num_looks_ = 0;                     // check_nothing_is_new()
  StepRecorder steps_;
  std::optional<DeviceSteps<StreamEvent>> device_steps_;  // nullopt: on the CPU
  Clock::duration loader_{};   // with device_steps_: what the step under way waited for its data
  bool averages_ = true;       // the coming backward does
  bool sends_buffers_ = true;  // the coming forward does
  std::vector<std::uint8_t> statically_used_;  // static_graph: on any rank; empty: not known yet

  // DdpOptions::zero
  bool has_optimizer_ = false;
  bool has_averages_ = false;  // since the last zero_grad(), in the reducer's shards

  std::optional<JoinOptions> join_;  // of the scope that is open
  double scale_ = 1;                 // on the coming averages

  // State of the current backward.
  bool final_callback_queued_ = false;
  bool unused_marked_ = false;
  struct Unused {
    std::size_t index;
    at::Tensor gradient;  // what it was before this backward; undefined where there was none
  };
  std::vector<Unused> unused_;

  // Second owners: hooks of graphs that may outlive this object, which it then tells.
  std::shared_ptr<Impl*> self_ = std::make_shared<Impl*>(this);
};

}  // namespace ddprun
