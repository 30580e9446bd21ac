// SPDX-License-Identifier: Apache-2.0
// After a failure NCCL may write to the tensors of its operations until it has been aborted. These
// stay until then. Exit status 0: all checks hold.
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_nccl.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/core/rank_group.h"
#include "worker_sdk/core/rank_threads.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/grad_scaler.h"
#include "worker_sdk/torch/hook_state.h"
#include "worker_sdk/torch/parallel/average_gradients.h"
#include "worker_sdk/torch/sharded_optimizer.h"
#include "worker_sdk/torch/sparse_gradients.h"
#include "worker_sdk/torch/tensor_collectives.h"
#include "worker_sdk/torch/tensor_exchange.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace kept_memory_worker {
namespace {

constexpr std::int64_t kCount = 1 << 18;  // so many bytes travel alone

bool is_mapped(const void* memory) {
  const auto page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto page = reinterpret_cast<std::uintptr_t>(memory) / page_size * page_size;
  return ::msync(reinterpret_cast<void*>(page), page_size, MS_ASYNC) == 0;
}

// Notes what LibTorch frees, but gives no memory back: an address then has one tensor for good.
class NotedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) override {
    const std::lock_guard lock(mutex_);
    Piece& piece = pieces_.emplace_back(real_.allocate(size_bytes));
    const auto note = [](void* context) { static_cast<Piece*>(context)->is_there = false; };
    return {piece.memory.get(), &piece, note, piece.memory.device()};
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  // Memory that did not come from here is there as long as it is mapped.
  bool has(const void* memory) {
    const std::lock_guard lock(mutex_);
    for (const Piece& piece : pieces_) {
      if (piece.memory.get() == memory) return piece.is_there;
    }
    return is_mapped(memory);
  }

 private:
  struct Piece {
    explicit Piece(c10::DataPtr pointer) : memory(std::move(pointer)) {}
    c10::DataPtr memory;
    std::atomic<bool> is_there = true;
  };

  c10::Allocator& real_ = *c10::GetCPUAllocator();
  std::mutex mutex_;
  std::deque<Piece> pieces_;
};

NotedMemory& noted_memory() {
  static auto& memory = *new NotedMemory;  // tensors may outlive all that is static
  return memory;
}

// Notes what an operation writes.
class NotedOnGpu final : public OnGpu {
 public:
  explicit NotedOnGpu(std::unique_ptr<Communicator> real) : OnGpu(*real), real_(std::move(real)) {}

  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    if (call.kind != CollectiveKind::kAllReduce && is_passed_over()) {
      if (call.kind == CollectiveKind::kAllGather) repeat(call.input, call.output);
      return completed_work();
    }
    last_written = call.output.data;
    return OnGpu::run(call, options);
  }

  const void* last_written = nullptr;
  int num_passed_over = 0;  // so many operations to come never reach NCCL

 private:
  // As if all ranks had this rank's values.
  static void repeat(TensorView input, TensorView output) {
    for (std::size_t offset = 0; offset < output.size_bytes(); offset += input.size_bytes()) {
      std::memcpy(static_cast<char*>(output.data) + offset, input.data, input.size_bytes());
    }
  }
  bool is_passed_over() { return num_passed_over > 0 && num_passed_over-- > 0; }

  const std::unique_ptr<Communicator> real_;
};

// A use is what rank 0 does alone; its first collective on the device fails.
using Use = std::function<void()>;
// Both ranks do this before. The use must go before the communicator.
using Prepare = std::function<Use(NotedOnGpu&)>;

Prepare nothing_before(void (*use)(NotedOnGpu&)) {
  return [use](NotedOnGpu& communicator) { return [use, &communicator] { use(communicator); }; };
}

void average(NotedOnGpu& communicator) {
  torch::Tensor parameter = torch::zeros({kCount}).requires_grad_(true);
  parameter.mutable_grad() = torch::ones({kCount});
  average_gradients({parameter}, communicator);
}
void reduce(NotedOnGpu& communicator) {
  torch_adapter::all_reduced(torch::ones({kCount}), communicator);
}
void gather_later(NotedOnGpu& communicator) {
  torch_adapter::start_gather(torch::ones({kCount}), communicator).wait();
}
void gather_and_forget(NotedOnGpu& communicator) {
  torch_adapter::start_gather(torch::ones({kCount}), communicator);
  throw Error(ErrorCode::kPeerLost, "the test's own");
}
void unscale(NotedOnGpu& communicator) {
  (void)GradScaler(torch::kCPU, &communicator).unscale({torch::ones({4})});
}
void average_sparse(NotedOnGpu& communicator) {
  communicator.num_passed_over = 1;  // the ranks' kinds of gradients
  torch::Tensor parameter = torch::zeros({8, 4}).requires_grad_(true);
  parameter.mutable_grad() = torch::ones({8, 4});
  torch_adapter::average_sparse_gradient(parameter, "weight", 0.5, communicator);
}
void save_hook_state(NotedOnGpu& communicator) {
  struct Hook final : CommHook {
    HookStep run(const GradBucket&, int, Communicator&) override { return {}; }
    std::vector<HookTensor> state() override {
      return {{.name = "error",
               .shape = {4},
               .view = torch_adapter::view_of(error, "error"),
               .per_rank = true}};
    }
    torch::Tensor error = torch::ones({4});
  };
  Hook hook;
  hook_tensors_to_save(hook, communicator);
}
void send_small_tensors(NotedOnGpu& communicator) {
  torch_adapter::broadcast_tensors({torch::ones({4})}, 1, communicator, torch::kCPU);
}
void send_large_tensor(NotedOnGpu& communicator) {
  torch_adapter::broadcast_tensors({torch::ones({kCount})}, 1, communicator, torch::kCPU);
}
void send_size_of_bytes(NotedOnGpu& communicator) {
  std::string bytes = "text";
  torch_adapter::broadcast_bytes(bytes, 1, communicator, torch::kCPU);
}
void send_bytes(NotedOnGpu& communicator) {
  communicator.num_passed_over = 1;  // the size
  send_size_of_bytes(communicator);
}
void reduce_some_bytes(NotedOnGpu& communicator) {
  torch_adapter::reduced_bytes({1, 2}, ReduceOp::kMax, communicator, torch::kCPU);
}
void gather_a_byte(NotedOnGpu& communicator) {
  torch_adapter::gather_bytes(1, communicator, torch::kCPU);
}
void gather_some_texts(NotedOnGpu& communicator) {
  torch_adapter::gather_texts("text", 64, communicator, torch::kCPU);
}

// A net whose ranks have averaged gradients, in parts.
struct Sharded {
  explicit Sharded(Communicator& communicator)
      : ddp(*net, communicator, DdpOptions{.zero = ZeroStage::kOptimizer}) {
    optimizer.emplace(std::vector<ParameterGroup>{{trainable_parameters(*net), AdamWRule()}}, ddp);
    ddp(torch::ones({1, 512})).sum().backward();
  }

  // Drops the optimiser, and leaves no parameter in its memory.
  void drop_optimizer() {
    optimizer.reset();
    for (torch::Tensor& each : net->parameters()) each.set_data(torch::zeros_like(each));
  }

  torch::nn::Linear net{torch::nn::LinearOptions(512, 512)};
  DistributedDataParallel<torch::nn::LinearImpl> ddp;
  std::optional<ShardedOptimizer> optimizer;
};

Prepare sharded(void (*use)(ShardedOptimizer&)) {
  return [use](NotedOnGpu& communicator) -> Use {
    const auto net = std::make_shared<Sharded>(communicator);
    return [use, net] {
      try {
        use(*net->optimizer);
      } catch (const Error&) {
        net->drop_optimizer();
        throw;
      }
    };
  };
}

void step(ShardedOptimizer& optimizer) { optimizer.step(); }
void clip(ShardedOptimizer& optimizer) { optimizer.clip_gradient_norm({.max_norm = 1}); }
void show_state(ShardedOptimizer& optimizer) {
  optimizer.for_each_state([](const NamedState&) {});
}

// Rank 1 never comes, and NCCL says so while rank 0 waits. The abort begins only when the tensors
// have been looked for.
void check(const std::string& name, const Prepare& prepare) {
  const auto cuda = std::make_shared<test::FakeCuda>(2);
  const auto fake = std::make_shared<test::FakeNccl>(cuda);
  std::latch has_looked(1);
  std::atomic<bool> is_prepared = false;
  const auto holds = [&name](bool is_so, const std::string& what) {
    expect(is_so, name + ": " + what);
  };
  const auto rank_0 = [&](NotedOnGpu& communicator) {
    Use use = prepare(communicator);
    fake->hang_aborts();
    is_prepared = true;
    ErrorCode code{};
    try {
      use();
    } catch (const Error& error) {
      code = error.code();
    }
    holds(code == ErrorCode::kPeerLost, "the other rank is lost");
    holds(fake->num_running(0) > 0, "the operation is on the device");
    holds(noted_memory().has(communicator.last_written), "what it writes is there");
    fake->release_aborts();
  };
  const auto rank_1 = [&](NotedOnGpu& communicator) {
    const Use kept = prepare(communicator);
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (!is_prepared || fake->num_running(0) == 0) {
      holds(Clock::now() < deadline, "rank 0 begins its operation");
      std::this_thread::yield();
    }
    fake->inject_async_error(0, nccl::Result::kRemoteError);
    has_looked.wait();
  };
  const auto body = [&](Session& session, Communicator&) {
    auto communicator = std::make_unique<NotedOnGpu>(
        session.make_communicator(BackendChoice::kNccl, {.blocking_wait = true}));
    if (session.rank() == 1) return rank_1(*communicator);
    const std::unique_ptr<std::latch, void (*)(std::latch*)> at_end(
        &has_looked, [](std::latch* latch) { latch->count_down(); });
    rank_0(*communicator);
    const void* const written = communicator->last_written;
    communicator.reset();
    holds(fake->num_running(0) == 0, "nothing is on the device");
    holds(!noted_memory().has(written), "nothing keeps the memory any more");
  };
  run_rank_threads(2, body, {.backend = BackendChoice::kHost, .nccl_loader = [&] {
                               return NcclLibraries{cuda, fake};
                             }});
  expect(fake->num_violations() == 0, "NCCL's rules are kept");
}

}  // namespace

int program(int /*argc*/, char** /*argv*/) {
  c10::SetCPUAllocator(&noted_memory());
  torch::set_num_threads(1);
  try {
    check("averaged gradients", nothing_before(average));
    check("a sum", nothing_before(reduce));
    check("a gather that is waited for", nothing_before(gather_later));
    check("a gather that is dropped", nothing_before(gather_and_forget));
    check("the overflow of a GradScaler", nothing_before(unscale));
    check("a sparse gradient that becomes dense", nothing_before(average_sparse));
    check("the state of a hook", nothing_before(save_hook_state));
    check("tensors that travel together", nothing_before(send_small_tensors));
    check("a tensor that travels alone", nothing_before(send_large_tensor));
    check("the size of a text", nothing_before(send_size_of_bytes));
    check("a text", nothing_before(send_bytes));
    check("reduced bytes", nothing_before(reduce_some_bytes));
    check("gathered bytes", nothing_before(gather_a_byte));
    check("gathered texts", nothing_before(gather_some_texts));
    check("ZeRO's parameters", sharded(step));
    check("ZeRO's norm", sharded(clip));
    check("ZeRO's state", sharded(show_state));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kept_memory_worker: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace kept_memory_worker
