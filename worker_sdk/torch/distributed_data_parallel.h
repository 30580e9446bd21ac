// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel for LibTorch: trains any torch::nn::Module on every rank with the same
// averaged gradients. Algorithm and defaults are PyTorch's, except the size of buckets; docs/ddp.md
// explains it.
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
  // Averages the buckets instead of the plain all-reduce (comm_hook.h). Shared with code that reads
  // its state.
  std::shared_ptr<CommHook> comm_hook = nullptr;
  // Some parameters get no gradient in some iterations, perhaps others on each rank: every forward
  // looks which parameters its output depends on. A parameter that no rank uses keeps its gradient,
  // or has none; one that some rank uses gets the average. Costs a walk over the graph and a small
  // all-reduce.
  bool find_unused_parameters = false;
  // Each iteration does the same as the first, which learns which parameters this rank uses and how
  // often. Allows unused parameters, and backwards inside of backwards (checkpointed parts), at no
  // cost after the first iteration; a change is an error. Stronger than find_unused_parameters.
  bool static_graph = false;
  // Names of parameters and buffers that each rank keeps for itself: they are not compared, sent or
  // averaged.
  std::vector<std::string> ignored{};
  // Each rank gets only its part of the averages and updates only that part of the parameters, by a
  // ShardedOptimizer (docs/zero.md). Parameters have no gradient after an averaged backward. Not
  // with comm_hook, find_unused_parameters, static_graph or a join (Error(kUnsupported)).
  ZeroStage zero = ZeroStage::kOff;
  // Looks for NaN in each gradient of this rank, before it is averaged and all ranks have it. The
  // backward throws Error(kInvalidArgument), which names parameter and rank; the other ranks get
  // it, too. It waits for the device at each gradient, so use it only to find errors. The word
  // "nan" in DDPRUN_DEBUG also sets it. A GradScaler's overflows may be NaN, too: switch it off for
  // the search.
  bool check_nan = false;
};

// For ranks with different numbers of batches.
struct JoinOptions {
  // True: gradients are divided by the number of all ranks, so that each batch counts the same.
  // False: they are divided by the number of ranks that still have inputs.
  bool divide_by_initial_world_size = true;
  // Once a rank has run out, forward and finish() throw Error(kInvalidArgument) on every rank.
  bool throw_on_early_termination = false;
};

struct JoinResult {
  int source_rank = 0;  // the highest of the ranks that ran out last: all now have its model
  std::uint64_t num_shadowed = 0;  // averaged steps of other ranks since this rank ran out
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

  // A scope in which ranks may have different numbers of batches, even none:
  //
  //   auto join = ddp.join();
  //   for (auto& batch : my_batches) { …forward, backward, optimizer.step()… }
  //   join.finish();
  //
  // Every rank makes one. Within it all ranks that have inputs go forward equally often for each
  // averaged backward, and no_sync covers the same forwards on all. Buffers come from the highest
  // of these ranks. It costs a message of a byte per forward.
  class Join {
   public:
    // Error(kInvalidArgument): a join is open already. Error(kUnsupported): with DdpOptions::zero.
    explicit Join(DdpBase& ddp, const JoinOptions& options = {});
    // Without finish(), for example after an exception, the other ranks are not told.
    ~Join();
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;

    // Call it once (else Error(kInvalidArgument)) when this rank has run out. Collective. Takes
    // part in the others' steps, with zeros for gradients, until all have run out. Then parameters
    // and buffers are those of `source_rank` on every rank. To use an optimiser's state again, the
    // caller must send it from there, too. This rank's gradients are gone if it has shadowed a
    // step.
    JoinResult finish();

   private:
    void leave();

    DdpBase& ddp_;
    bool open_ = true;
  };
  [[nodiscard]] Join join(const JoinOptions& options = {}) { return Join(*this, options); }

  // Forgets all gradients, also those of DdpOptions::ignored parameters; the next backward writes
  // them into the buckets. Replaces optimizer.zero_grad(), which works too. Not collective.
  void zero_grad();

  // Sets DdpOptions::comm_hook, between a backward and the next forward; null: removes it.
  // Collective. Error(kInvalidArgument): within a join. Error(kUnsupported): with DdpOptions::zero.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  // Returns the bytes that this rank gave to collectives for its gradients since the hook was set.
  const GradientTraffic& traffic() const;

  // Returns the times of the last finished backward: when each bucket was launched and finished.
  const IterationTrace& trace() const;

  // statistics() returns how long the parts of this rank's steps took so far; on a GPU it has only
  // steps that the device has done. The loop's thread calls it. The loop tells waited_for_data()
  // how long it waited for data, before the step that the data is for.
  StepStatistics statistics() const;
  void waited_for_data(Clock::duration time);

  // Buckets and their parameters' numbers: one bucket per dtype at first, then by order of arrival.
  const BucketPlan& bucket_plan() const;

  // Returns the names of the parameters in the order that buckets are formed by: rank 0's order of
  // arrival in the first averaged iteration. It is empty before that iteration; ranks other than 0
  // have their own order until the second. Save it in a checkpoint. An element's place in a bucket
  // decides how communicators and hooks round, so a run goes on bit for bit only with the same
  // buckets.
  std::vector<std::string> gradient_order() const;

  // Forms the final buckets by these names now, instead of in the second averaged iteration, in
  // every mode. The same options and backend give the same buckets. Call it between a backward and
  // the next forward, or before the first; gradients then lie elsewhere. Collective; only rank 0's
  // `names` count. Error(kInvalidArgument) on every rank, without effect, if they are not exactly
  // the parameters whose gradients are averaged. The same error comes within a join, and with
  // DdpOptions::zero, whose buckets are formed once.
  void set_gradient_order(const std::vector<std::string>& names);

  // The parameters whose gradients are averaged in buckets, numbered as in bucket_plan(). Those
  // with sparse gradients are not among them.
  const std::vector<at::Tensor>& parameters() const;

  // The memory of the buckets, padding (zeros) included. It moves when bucket_plan() changes.
  std::vector<TensorView> gradient_buckets() const;

  // Returns the bytes of all memory that this object has for gradients.
  std::size_t gradient_bytes() const;
  ZeroStage zero() const;

  // Call it before a forward that does not go through forward() or operator(). Sends buffers. Once,
  // in the second averaged iteration, it forms the final buckets: gradients then lie elsewhere.
  // Collective. Error(kInvalidArgument), which names the parameter: it was cast, moved or unfrozen
  // since it was wrapped. The first two forwards also find one that was added or replaced. The
  // error also comes if the backward before threw, or if a rank has run out of inputs and a join
  // ends then. With DdpOptions::zero the error comes if there is no ShardedOptimizer, or if
  // averages were not forgotten since (zero_grad()). Also throws the communicator's errors.
  void before_forward();

  // Call it after such a forward, with all tensors that the loss may be made from, of any shape. It
  // acts only if find_unused_parameters or static_graph is set. Ignores undefined tensors and those
  // without a gradient. Not collective; throws nothing of its own.
  void after_forward(const std::vector<at::Tensor>& outputs);

 protected:
  DdpBase(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options);
  ~DdpBase();

 private:
  friend class ShardedOptimizer;  // there is one at a time

  void check_still_as_wrapped() const;
  void check_shards_are_used() const;
  // Sends what a forward needs. `averages`: its backward averages the gradients.
  void go_forward(bool averages, int buffers_from);

  // Each uses the members before it.
  std::unique_ptr<torch_adapter::WrappedModel> model_;
  std::unique_ptr<torch_adapter::GradientBuckets> buckets_;
  std::unique_ptr<torch_adapter::StepTimes> times_;
  std::unique_ptr<torch_adapter::DdpBackward> backward_;

  int no_sync_depth_ = 0;
  std::optional<JoinOptions> join_;  // of the open join; nullopt: none is open
  bool sends_buffers_ = true;        // the coming forward sends buffers
  bool has_optimizer_ = false;       // with DdpOptions::zero: a ShardedOptimizer exists
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
// otherwise); backward throws Error(kInvalidArgument) naming those that got none. Freeze, cast,
// move, add or replace parameters before wrapping, not after: the next forward throws, naming the
// parameter. Sparse gradients, of Embedding and EmbeddingBag layers, are averaged when the backward
// is over. Error(kUnsupported) from backward: a gradient with a graph of its own (create_graph), of
// another dtype than its parameter's, or sparse elsewhere or with DdpOptions::zero. After a
// backward that threw, the next forward throws, too: leave the program.
template <typename Model>
class DistributedDataParallel : public DdpBase {
 public:
  // Collective. Compares names, shapes and dtypes of the parameters on all ranks, then copies rank
  // 0's parameters and buffers to all. If they differ, every rank throws Error(kInvalidArgument),
  // naming rank and parameter. The same error comes if there is nothing to average, or if another
  // object wraps a parameter already. `model` and `communicator` must outlive this object.
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
