// SPDX-License-Identifier: Apache-2.0
#include "tests/worker_sdk/torch/pytorch_ddp.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "worker_sdk/torch/sparse_gradients.h"

namespace ddprun::testing {

using torch::Tensor;

namespace {

// distributed.py's broadcast_bucket_size.
constexpr std::size_t kBroadcastBytes = 250 << 20;

// Has the calls that c10d::Reducer and broadcast_coalesced make. Each has ended when it returns.
class GatheringBackend final : public c10d::Backend {
 public:
  explicit GatheringBackend(Communicator& communicator)
      : Backend(communicator.rank(), communicator.size()), communicator_(communicator) {}

  const std::string getBackendName() const override { return "gathering"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "a reduction that is no sum");
    for (Tensor& tensor : tensors) {
      const bool is_sparse = tensor.is_sparse();
      const std::vector<Tensor> all = gather(is_sparse ? tensor.coalesce().to_dense() : tensor);
      Tensor sum = all[0];
      for (std::size_t r = 1; r < all.size(); ++r) sum = sum + all[r];
      tensor.copy_(is_sparse ? sum.to_sparse(tensor.sparse_dim()) : sum);
    }
    return done(tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<std::size_t>(options.rootRank);
    for (Tensor& tensor : tensors) tensor.copy_(gather(tensor)[root]);
    return done(tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<Tensor>>& outputs,
                                           std::vector<Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    const std::vector<Tensor> all = gather(inputs.at(0));
    for (std::size_t r = 0; r < all.size(); ++r) outputs.at(0).at(r).copy_(all[r]);
    return done(outputs[0]);
  }

 private:
  // Each rank's tensor, by rank.
  std::vector<Tensor> gather(const Tensor& mine) {
    const Tensor input = mine.contiguous();
    const Tensor output = torch::empty({getSize(), mine.numel()}, mine.options());
    const auto bytes_of = [](const Tensor& tensor) {
      return TensorView{
          .data = tensor.data_ptr(), .count = tensor.nbytes(), .dtype = DType::kUInt8};
    };
    communicator_.all_gather(bytes_of(input), bytes_of(output));
    std::vector<Tensor> all;
    for (const Tensor& part : output.unbind()) all.push_back(part.view(mine.sizes()));
    return all;
  }

  static c10::intrusive_ptr<c10d::Work> done(const std::vector<Tensor>& tensors) {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(tensors);
    return c10d::Work::create_from_future(future);
  }

  Communicator& communicator_;
};

c10::intrusive_ptr<c10d::ProcessGroup> group_of(Communicator& communicator) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(communicator.rank(), communicator.size());
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<GatheringBackend>(communicator));
  return group;
}

}  // namespace

PytorchDdpBase::PytorchDdpBase(torch::nn::Module& module, Communicator& communicator,
                               const DdpOptions& options)
    : module_(module),
      options_(options),
      group_(group_of(communicator)),
      delays_(options.static_graph) {
  make_reducer();
}

PytorchDdpBase::~PytorchDdpBase() = default;

// _build_params_for_reducer(), _sync_module_states(), _ddp_init_helper().
void PytorchDdpBase::make_reducer() {
  std::vector<Tensor> parameters;
  std::vector<bool> are_sparse;
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& module : module_.modules()) {
    for (const Tensor& parameter : module->parameters(/*recurse=*/false)) {
      if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      parameters.push_back(parameter);
      are_sparse.push_back(torch_adapter::has_sparse_gradient(*module));
    }
  }
  c10d::verify_params_across_processes(group_, parameters, {});
  std::vector<Tensor> state;
  for (const Tensor& each : module_.parameters()) state.push_back(each.detach());
  for (const Tensor& each : module_.buffers()) state.push_back(each.detach());
  send(state);

  const std::size_t first = options_.buckets.first_bytes, cap = options_.buckets.cap_bytes;
  const bool in_one = options_.static_graph || !options_.find_unused_parameters;
  const std::vector<std::size_t> limits =
      in_one ? std::vector{std::numeric_limits<std::size_t>::max()} : std::vector{first, cap};
  auto buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, are_sparse));
  std::reverse(buckets.begin(), buckets.end());
  reducer_ = std::make_shared<c10d::Reducer>(
      parameters, buckets, group_, are_sparse, static_cast<std::int64_t>(cap),
      options_.find_unused_parameters, /*gradient_as_bucket_view=*/false,
      std::unordered_map<std::size_t, std::string>{}, static_cast<std::int64_t>(first),
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<std::int64_t>{});
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (options_.static_graph) reducer_->set_static_graph();
}

void PytorchDdpBase::send(const std::vector<Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  if (!tensors.empty()) c10d::broadcast_coalesced(group_, tensors, kBroadcastBytes);
}

// _pre_forward()
void PytorchDdpBase::before_forward() {
  if (averages_) reducer_->prepare_for_forward();
  reducer_->rebuild_buckets();
  if (sends_buffers_ && options_.broadcast_buffers) send(module_.buffers());
}

// _post_forward(), and of _DDPSink what a single output needs.
Tensor PytorchDdpBase::after_forward(Tensor output) {
  sends_buffers_ = averages_;
  const bool looks = options_.find_unused_parameters && !options_.static_graph;
  if (averages_) {
    reducer_->prepare_for_backward(looks ? std::vector{output} : std::vector<Tensor>{});
  }
  if (delays_) {
    output.register_hook([this](const Tensor&) {
      if (!std::exchange(delays_, false)) return;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [this] { reducer_->delay_all_reduce(); });
    });
  }
  return output;
}

}  // namespace ddprun::testing
