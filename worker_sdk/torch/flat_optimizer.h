// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW that update a whole bucket of DistributedDataParallel at once. Parameters and
// their state lie in flat memory in the order of the gradients. The results are torch.optim's
// (docs/optimizers.md). No torch header needed here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_sdk/ddp/bucket_plan.h"
#include "worker_sdk/ddp/flat_runs.h"
#include "worker_sdk/torch/named_tensor.h"
#include "worker_sdk/torch/update_rule.h"

namespace torch::nn {
class Module;
}

namespace ddprun {

class DdpBase;

// Parameters that are updated by the same rule. They are leaves that require a gradient, of
// float32, float64, float16 or bfloat16.
struct ParameterGroup {
  std::vector<NamedTensor> parameters;
  UpdateRule rule;
};

// Returns the module's parameters that require a gradient, each once, by its first name.
std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module);

// One state of an optimiser for a parameter: `tensor` has the parameter's shape and dtype. "step",
// the number of updates, is one float32 on the CPU.
struct NamedState {
  std::string parameter;
  // torch.optim's: exp_avg, exp_avg_sq, max_exp_avg_sq, momentum_buffer, step
  std::string_view name;
  at::Tensor tensor;
};

// Rules, parameters and numbers of updates, as the optimisers over flat memory have them.
class FlatOptimizerBase {
 public:
  // Sets the learning rate of all groups, or of one by its place in the list.
  // Error(kInvalidArgument): `lr` is negative or not finite.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);

 protected:
  static constexpr std::size_t kMaxStates = 3;

  struct Item {
    NamedTensor parameter;
    std::size_t group = 0;
    std::size_t home = 0;    // the memory that has it
    std::size_t offset = 0;  // elements, there
    const void* data = nullptr;
  };
  // Runs that one fused call updates.
  struct Batch {
    std::size_t group = 0;
    bool is_first = false;                 // their items have had no update
    std::vector<std::size_t> items;        // of FlatOptimizer
    std::vector<std::size_t> first_items;  // by run
    std::vector<at::Tensor> values, gradients;
    std::vector<at::Tensor> states[kMaxStates];
  };

  // `name` begins its messages.
  explicit FlatOptimizerBase(const char* name) : name_(name) {}
  ~FlatOptimizerBase() = default;

  void add_item(NamedTensor parameter, std::size_t group, std::size_t home);
  // Returns whether `overflow` is 1 and had to be read here. Else the device will read it, or it is
  // reset: there is none.
  bool reads_overflow(at::Tensor& overflow);
  void count_updates(const std::vector<std::size_t>& items);
  void update(const Batch& batch, const at::Tensor& overflow);
  // Returns the batch of the group among `batches` from `first` on. Makes it if there is none.
  static Batch& batch_of(std::vector<Batch>& batches, std::size_t first, std::size_t group,
                         bool is_first);
  float* steps() const;

  // Constant after construction.
  const char* const name_;
  std::vector<Item> items_;
  bool takes_overflow_ = true;  // every fused update takes an overflow

  std::vector<UpdateRule> rules_;  // by group
  at::Tensor steps_;  // by item: its updates so far, float32 on the CPU as in torch.optim
  // How many updates were left out since it was last read, for every item with a gradient: one
  // float32 on the overflow's device. Undefined: none.
  at::Tensor skipped_;
};

// One thread at a time. From construction on, the parameters' values lie in memory of this object.
// That memory outlives the object if a parameter does. Move, cast or replace parameters only
// before.
class FlatOptimizer : public FlatOptimizerBase {
 public:
  // `ddp` averages the parameters' gradients and must outlive this object. Null: each gradient lies
  // where autograd puts it. Error(kInvalidArgument): a parameter twice in different groups, two of
  // one name, an option that torch.optim refuses, `ddp` with DdpOptions::zero.
  explicit FlatOptimizer(std::vector<ParameterGroup> groups, const DdpBase* ddp = nullptr);

  // Updates each parameter that has a gradient; those without one keep value and state.
  // Error(kUnsupported): a sparse gradient. Error(kInvalidArgument): a parameter was moved since
  // construction. `overflow` is GradScaler::unscale_async()'s answer; if it is 1, nothing is
  // updated. On a GPU the call doesn't wait for it (except for SGD with momentum and dampening).
  void step(const at::Tensor& overflow = {});

  // Forgets all gradients.
  void zero_grad();

  // Returns the present gradients in the groups' order, for clipping and unscaling in place. There
  // is one for each parameter, so a norm over them doesn't depend on the buckets, which differ in
  // the first step after a restart.
  std::vector<at::Tensor> gradients();

  // Returns all state, zeros before the first update. A checkpoint saves it, and loads by writing
  // into it. Ordered by parameter in the groups' order, whatever the buckets are. Valid until the
  // next step().
  std::vector<NamedState> state();

  // Returns how many arrays the last step() updated: with DDP about as many as buckets.
  std::size_t num_runs() const;

 private:
  // All parameters of one dtype on one device.
  struct Storage {
    std::vector<std::size_t> items;  // in memory order
    std::size_t num_states = 0;
    at::Tensor values;
    at::Tensor states[kMaxStates];
  };

  void add_items(std::vector<ParameterGroup> groups);
  void follow_buckets();
  void lay_out(Storage& storage);
  void refresh();
  std::uintptr_t dense_gradient(Item& item);
  void form_batches();
  std::vector<FlatRun> runs_of(const Storage& storage, const std::vector<TensorView>& buckets);
  void form_batches(const Storage& storage, const std::vector<FlatRun>& runs);
  void point_at_gradients(Batch& batch);
  void settle_skipped();

  const DdpBase* const ddp_;
  std::vector<Storage> storages_;
  BucketPlan plan_;  // the plan that the storages follow
  // From the last step: the gradients' addresses, and the runs and batches formed for them.
  std::vector<std::uintptr_t> gradients_;
  std::vector<std::vector<FlatRun>> runs_;  // by storage
  std::vector<Batch> batches_;
  bool has_first_ = false;  // when batches_ were formed, one of their items had had no update
};

}  // namespace ddprun
