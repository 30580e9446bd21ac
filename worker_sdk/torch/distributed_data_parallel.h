// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel for LibTorch: any torch::nn::Module, trained on every rank with the same
// averaged gradients. PyTorch's algorithm and, but for the size of buckets, its defaults;
// docs/ddp.md explains it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/ddp/comm_hook.h"
#include "worker_sdk/ddp/reducer.h"
#include "worker_sdk/ddp/step_statistics.h"
#include "worker_sdk/ddp/zero_stage.h"
#include "worker_sdk/torch/output_tensors.h"

namespace torch::nn {
class Module;
}

namespace ddprun {

namespace torch_adapter {
class DdpBackward;
class GradientBuckets;
class StepTimes;
class WrappedModel;
}  // namespace torch_adapter

struct DdpOptions {
  BucketLimits buckets{};  // 1 MiB, then 4 MiB (NCCL: 25 MiB, PyTorch's)
  // Rank 0's buffers (e.g. running means) go to all before each forward. False: at construction
  // only (PyTorch's forward_sync_buffers=False).
  bool broadcast_buffers = true;
  // Averages the buckets instead of the plain all-reduce (comm_hook.h). Shared with whoever wants
  // to read its state.
  std::shared_ptr<CommHook> comm_hook = nullptr;
  // Some parameters get no gradient in some iterations, each rank perhaps others: every forward
  // looks which its output depends on. One that no rank uses keeps its gradient, or has none; one
  // that some rank uses gets the average. Costs a walk over the graph and a small all-reduce.
  bool find_unused_parameters = false;
  // Each iteration does the same as the first, which learns which parameters this rank uses and how
  // often. Allows unused parameters, and backwards inside of backwards (checkpointed parts), at no
  // cost after the first iteration; a change is an error. Stronger than find_unused_parameters.
  bool static_graph = false;
  // Parameters and buffers, by name, that are each rank's own: neither compared nor sent nor
  // averaged.
  std::vector<std::string> ignored{};
  // Each rank gets only its part of the averages and updates only that part of the parameters, by a
  // ShardedOptimizer (docs/zero.md). Parameters have no gradient after an averaged backward. Not
  // with comm_hook, find_unused_parameters, static_graph or a join (Error(kUnsupported)).
  ZeroStage zero = ZeroStage::kOff;
  // Looks for NaN in each gradient of this rank, before it is averaged and all ranks have it. The
  // backward throws Error(kInvalidArgument) that names parameter and rank, and the other ranks hear
  // it. Waits for the device at each gradient: for finding errors. Also where DDPRUN_DEBUG has the
  // word "nan". A GradScaler's overflows may be NaN, too: switch it off for the search.
  bool check_nan = false;
};

// For ranks with different numbers of batches.
struct JoinOptions {
  // True: gradients are divided by the number of all ranks, so that each batch counts the same
  // whoever is out of inputs. False: by the number of those that aren't.
  bool divide_by_initial_world_size = true;
  // Once a rank has run out, forward and finish() throw Error(kInvalidArgument) on every rank.
  bool throw_on_early_termination = false;
};

struct JoinResult {
  int source_rank = 0;  // of those that ran out last, the highest: whose model all ranks now have
  std::uint64_t num_shadowed = 0;  // averaged steps of others since this rank ran out
};

// The part that does not depend on the model's type. Use DistributedDataParallel below.
//
// Forward and backward run on one thread. After an error of the communicator (a lost rank, a
// deadline) leave the program: the next round starts from the last checkpoint.
class DdpBase {
 public:
  // A scope in which gradients are only accumulated locally. It must cover forward and backward,
  // and may be inside another.
  class NoSync {
   public:
    explicit NoSync(DdpBase& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DdpBase& ddp_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // A scope in which ranks may have different numbers of batches, none included:
  //
  //   auto join = ddp.join();
  //   for (auto& batch : my_batches) { …forward, backward, optimizer.step()… }
  //   join.finish();
  //
  // Every rank makes one. Within it all ranks that have inputs go forward equally often for each
  // averaged backward. no_sync covers the same forwards on all. Buffers come from the highest of
  // these ranks. It costs a message of a byte per forward.
  class Join {
   public:
    // Error(kInvalidArgument): there is one already. Error(kUnsupported): with DdpOptions::zero.
    explicit Join(DdpBase& ddp, const JoinOptions& options = {});
    // Without finish(), as where an exception leaves the scope, the other ranks are not told.
    ~Join();
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;

    // Collective, once (else Error(kInvalidArgument)), when this rank has run out. Takes part in
    // the others' steps, with zeros for gradients, until all have run out. Then parameters and
    // buffers are those of `source_rank` on every rank. An optimiser's state is the caller's: send
    // it from there, too, where it is to be used again. This rank's gradients are gone if it has
    // shadowed a step.
    JoinResult finish();

   private:
    void leave();

    DdpBase& ddp_;
    bool open_ = true;
  };
  [[nodiscard]] Join join(const JoinOptions& options = {}) { return Join(*this, options); }

  // Forgets all gradients, those of DdpOptions::ignored parameters too; the next backward writes
  // them into the buckets. Instead of optimizer.zero_grad(), which works too. Not collective.
  void zero_grad();

  // As DdpOptions::comm_hook, between a backward and the next forward; null: none any more.
  // Collective. Error(kInvalidArgument): within a join. Error(kUnsupported): with DdpOptions::zero.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // Bytes that this rank gave to collectives for its gradients since the hook was registered.
  const GradientTraffic& traffic() const;

  // The last finished backward: when each bucket was launched and finished.
  const IterationTrace& trace() const;

  // How long the parts of this rank's steps took so far; on a GPU only steps that the device has
  // done. The loop's thread. To make waiting for data show, the loop says how long it waited,
  // before the step that the data is for.
  StepStatistics statistics() const;
  void waited_for_data(Clock::duration time);

  // Buckets and the parameters' numbers in them: one per dtype at first, then by order of arrival.
  const BucketPlan& bucket_plan() const;

  // The names of the parameters in the order that buckets are formed by: rank 0's of arrival, as
  // the first averaged iteration has shown it. Empty before that, and on another rank than 0 not
  // yet agreed until the second. It belongs into a checkpoint. The place of an element in a bucket
  // decides how communicators and hooks round. So a run goes on bit for bit only with the same
  // buckets.
  std::vector<std::string> gradient_order() const;

  // Forms the final buckets by it now, instead of in the second averaged iteration, in every mode.
  // The same options and backend give the same buckets. Between a backward and the next forward,
  // also before the first; gradients then lie elsewhere. Collective; rank 0's `names` count.
  // Error(kInvalidArgument) on every rank, and nothing is changed, if they are not exactly the
  // parameters whose gradients are averaged. Also within a join, and with DdpOptions::zero, whose
  // buckets are formed once.
  void set_gradient_order(const std::vector<std::string>& names);

  // The parameters whose gradients are averaged in buckets, in bucket_plan()'s numbering. Those
  // with sparse gradients are not among them.
  const std::vector<at::Tensor>& parameters() const;

  // The memory of the buckets, padding (zeros) included. Moves where bucket_plan() changes.
  std::vector<TensorView> gradient_buckets() const;

  // All memory that this object has for gradients, and DdpOptions::zero.
  std::size_t gradient_bytes() const;
  ZeroStage zero() const;

  // Call before a forward that does not go through forward() or operator(). Sends buffers. Once, in
  // the second averaged iteration, it forms the final buckets: gradients then lie elsewhere.
  // Collective. Error(kInvalidArgument): a parameter was cast, moved or unfrozen since it was
  // wrapped. The first two forwards also see one that was added or replaced. The message names it.
  // The same if the backward before threw, or a rank has run out of inputs and a join ends then.
  // With DdpOptions::zero, the same if there is no ShardedOptimizer, or averages were not forgotten
  // since (zero_grad()). Else the communicator's errors.
  void before_forward();

  // Call after such a forward, with all tensors that the loss may be made from, of any shape. It
  // acts if find_unused_parameters or static_graph is set. Undefined tensors and those without a
  // gradient are passed over. Not collective; throws nothing of its own.
  void after_forward(const std::vector<at::Tensor>& outputs);

 protected:
  DdpBase(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options);
  ~DdpBase();
  DdpBase(const DdpBase&) = delete;
  DdpBase& operator=(const DdpBase&) = delete;

 private:
  friend class ShardedOptimizer;  // of which there is one at a time

  void check_still_as_wrapped() const;
  void check_shards_are_used() const;
  // Sends what a forward needs; its backward averages the gradients, or doesn't.
  void go_forward(bool averages, int buffers_from);

  // Each uses those before it.
  std::unique_ptr<torch_adapter::WrappedModel> model_;
  std::unique_ptr<torch_adapter::GradientBuckets> buckets_;
  std::unique_ptr<torch_adapter::StepTimes> times_;
  std::unique_ptr<torch_adapter::DdpBackward> backward_;

  int no_sync_depth_ = 0;
  std::optional<JoinOptions> join_;  // of the scope that is open
  bool sends_buffers_ = true;        // the coming forward does
  bool has_optimizer_ = false;       // DdpOptions::zero
};

// `Model` is a subclass of torch::nn::Module with a forward(). Use:
//
//   Net net;                                          // TORCH_MODULE(Net), or a struct NetImpl
//   ddprun::DistributedDataParallel ddp(*net, *communicator);
//   ddp.zero_grad();
//   loss(ddp(images), labels).backward();             // gradients are averages when it returns
//   optimizer.step();                                 // over net->parameters()
//
// Every parameter that requires a gradient must get one in each backward (unless DdpOptions say
// otherwise); backward throws Error(kInvalidArgument) naming those that got none. Parameters are
// frozen, cast, moved, added or replaced before wrapping, not after: the next forward refuses it by
// name. Sparse gradients, of Embedding and EmbeddingBag layers, are averaged when the backward is
// over. Error(kUnsupported) from backward: a gradient with a graph of its own (create_graph), of
// another dtype than its parameter's, or sparse elsewhere or with DdpOptions::zero. After a
// backward that threw it throws, too: leave the program.
template <typename Model>
class DistributedDataParallel : public DdpBase {
 public:
  // Collective. Compares names, shapes and dtypes of the parameters on all ranks, then copies rank
  // 0's parameters and buffers to all. If they differ, every rank throws Error(kInvalidArgument),
  // naming rank and parameter. The same if there is nothing to average, or if another one wraps a
  // parameter already. `model` and `communicator` must outlive this object.
  DistributedDataParallel(Model& model, Communicator& communicator, const DdpOptions& options = {})
      : DdpBase(model, communicator, options), model_(model) {}

  Model& module() { return model_; }

  template <typename... Args>
  decltype(auto) forward(Args&&... args) {
    before_forward();
    decltype(auto) output = model_.forward(std::forward<Args>(args)...);
    std::vector<at::Tensor> tensors;
    collect_tensors(output, tensors);
    after_forward(tensors);
    return output;
  }
  template <typename... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

 private:
  Model& model_;
};

}  // namespace ddprun
