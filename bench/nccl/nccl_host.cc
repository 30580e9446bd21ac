// SPDX-License-Identifier: Apache-2.0
// Measures an all-reduce's cost for the thread that starts it over NCCL, and shows what happens
// when a rank stays away. Started by ddprun, one process per rank; ranks may share a GPU where each
// has its own NCCL_HOSTID (and, for absent and die, DDPRUN_TEST_GPU=shared). Figures are lines of
// JSON.
//
//   host BYTESxCOUNT,… [average]  µs in the call, ours and bare NCCL in turn, 8 calls at a time
//   stress BYTES COUNT SECONDS    all-reduces without a pause; the sums are looked at
//   average                       DDP's average beside NCCL's own
//   graph COUNT                   so many all-reduces, captured in a CUDA graph and replayed
//   absent TIMEOUT_S SLEEP_S      rank 1 sleeps instead of joining the sixth all-reduce
//   die TIMEOUT_S                 rank 1 kills itself there, in the first round
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/nccl/bare_nccl.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/utf8.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/loader.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"
#include "worker_sdk/core/session.h"

using namespace ddprun;

namespace {

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A rank on its device, with a communicator of the product.
struct World {
  std::unique_ptr<Session> session = Session::from_env();
  std::shared_ptr<nccl::CudaApi> cuda = nccl::load_cuda();
  std::shared_ptr<nccl::NcclApi> library = nccl::load_nccl();
  int device = 0;
  std::unique_ptr<Communicator> ours;

  World() {
    int num_devices = 0;
    check(cuda->device_count(&num_devices), "cudaGetDeviceCount");
    device = session->env().device % num_devices;
    check(cuda->set_device(device), "cudaSetDevice");
    nccl::NcclOptions options;
    options.rank = session->rank();
    options.size = session->world_size();
    options.device = device;
    options.key_prefix = "nccl_host/";
    options.timeout = options.init_timeout = std::chrono::seconds(60);
    ours = nccl::make_nccl_communicator(cuda, library, session->store(), options);
  }
  void check(nccl::CudaResult result, const char* what) {
    nccl::check_cuda(*cuda, result, session->rank(), what);
  }
  // float32 on the device: all zero.
  TensorView zeros(std::size_t size_bytes) {
    TensorView view{.count = size_bytes / sizeof(float),
                    .dtype = DType::kFloat32,
                    .device = {Device::Kind::kCuda, device}};
    check(cuda->memory_allocate(&view.data, size_bytes), "cudaMalloc");
    check(cuda->memory_set(view.data, 0, size_bytes, nullptr), "cudaMemset");
    check(cuda->stream_synchronize(nullptr), "cudaStreamSynchronize");
    return view;
  }
  void all_reduce(TensorView view, ReduceOp op) {
    CallOptions async;
    async.async = true;
    ours->all_reduce(view, op, async)->wait();
  }
};

void host_time_of(World& world, bench::BareNccl& bare, std::size_t size_bytes, int count,
                  ReduceOp op) {
  const TensorView view = world.zeros(size_bytes);
  struct Side {
    const char* name;
    nccl::Stream stream;
    std::function<void()> start;
    std::vector<double> each_us{};
    double whole_us = 0;
  };
  Side sides[] = {{"ours", nullptr, [&] { world.all_reduce(view, op); }},
                  {"bare", bare.stream(), [&] { bare.all_reduce(view, op); }}};
  constexpr int kBatch = 8;  // then the device has caught up: a full queue isn't measured
  for (int i = -kBatch; i < count; i += kBatch) {
    for (Side& side : sides) {
      world.ours->barrier({});
      const auto begin = Clock::now();
      for (int k = 0; k < kBatch; ++k) {
        const auto start = Clock::now();
        side.start();
        if (i >= 0) side.each_us.push_back(1e6 * seconds_since(start));
      }
      world.check(world.cuda->stream_synchronize(side.stream), "cudaStreamSynchronize");
      if (i >= 0) side.whole_us += 1e6 * seconds_since(begin);
    }
  }
  world.ours->barrier({});
  world.cuda->memory_free(view.data);
  if (world.session->rank() != 0) return;
  std::printf("{\"op\": \"%s\", \"bytes\": %zu, \"ranks\": %d",
              op == ReduceOp::kSum ? "sum" : "average", size_bytes, world.session->world_size());
  for (Side& side : sides) {
    std::sort(side.each_us.begin(), side.each_us.end());
    const std::size_t n = side.each_us.size();
    std::printf(", \"%s_us\": %.2f, \"%s_p90_us\": %.2f, \"%s_whole_us\": %.1f", side.name,
                side.each_us[n / 2], side.name, side.each_us[n * 9 / 10], side.name,
                side.whole_us / static_cast<double>(n));
  }
  std::printf("}\n");
  std::fflush(stdout);
}

void host_time(World& world, const char* sizes, ReduceOp op) {
  bench::BareNccl bare(*world.cuda, *world.library, world.session->store(), world.session->rank(),
                       world.session->world_size());
  for (const char* at = sizes; *at != '\0';) {
    char* end = nullptr;
    const std::size_t size_bytes = std::strtoul(at, &end, 10);
    const long count = *end == 'x' ? std::strtol(end + 1, &end, 10) : 0;
    if (size_bytes < sizeof(float) || count < 1 || (*end != ',' && *end != '\0')) {
      throw Error(ErrorCode::kInvalidArgument, std::string("not BYTESxCOUNT: ") + at);
    }
    host_time_of(world, bare, size_bytes, static_cast<int>(count), op);
    at = *end == ',' ? end + 1 : end;
  }
}

// Sums ones over all ranks and returns the first element. Rank 0 adds 1000 to it when it wants to
// end.
float sum_of_ones(World& world, TensorView view, bool last) {
  std::vector<float> values(view.count, 1.0F);
  if (last) values[0] += 1000.0F;
  const auto copy = [&](void* to, const void* from) {
    world.check(world.cuda->memory_copy(to, from, view.size_bytes(), nullptr), "cudaMemcpyAsync");
    world.check(world.cuda->stream_synchronize(nullptr), "cudaStreamSynchronize");
  };
  copy(view.data, values.data());
  world.all_reduce(view, ReduceOp::kSum);
  copy(values.data(), view.data);
  const auto size = static_cast<float>(world.session->world_size());
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] == size) continue;
    throw Error(ErrorCode::kProtocol, "a sum of ones is " + std::to_string(values[i]));
  }
  return values[0];
}

// COUNT times or for SECONDS by rank 0's clock.
void stress(World& world, std::size_t size_bytes, int count, double seconds) {
  const TensorView data = world.zeros(size_bytes), ones = world.zeros(256);
  const auto begin = Clock::now();
  int done = 0;
  for (bool last = false; done < count && !last; ++done) {
    world.all_reduce(data, ReduceOp::kSum);
    if (done % 64 == 63) world.check(world.cuda->stream_synchronize(nullptr), "synchronize");
    if (done % 256 != 255) continue;
    const bool enough = world.session->rank() == 0 && seconds_since(begin) > seconds;
    last = sum_of_ones(world, ones, enough) > 500.0F;
  }
  world.ours->barrier({});
  const double spent = seconds_since(begin);
  world.cuda->memory_free(data.data);
  world.cuda->memory_free(ones.data);
  if (world.session->rank() != 0) return;
  std::printf("{\"operations\": %d, \"bytes\": %zu, \"seconds\": %.1f, \"us_each\": %.1f}\n", done,
              size_bytes, spent, 1e6 * spent / std::max(1, done));
}

// DDP divides each rank's share and has NCCL sum. NCCL's own average does the same inside, but may
// add in another order. Throws if they differ by more than a unit in the last place.
void average(World& world) {
  constexpr std::size_t kSizeBytes = 4 << 20;
  const TensorView summed = world.zeros(kSizeBytes), averaged = world.zeros(kSizeBytes);
  const int rank = world.session->rank(), num_ranks = world.session->world_size();
  std::vector<float> share(summed.count), divided;
  for (std::size_t i = 0; i < share.size(); ++i) {  // from 0.5 to 1, other numbers on each rank
    share[i] =
        0.5F + 0.49F * std::abs(std::sin(static_cast<float>(i) * static_cast<float>(rank + 1)));
  }
  for (const float each : share) divided.push_back(each * (1.0F / static_cast<float>(num_ranks)));
  const auto copy = [&](void* to, const void* from) {
    world.check(world.cuda->memory_copy(to, from, kSizeBytes, nullptr), "cudaMemcpyAsync");
    world.check(world.cuda->stream_synchronize(nullptr), "cudaStreamSynchronize");
  };
  copy(summed.data, divided.data());
  copy(averaged.data, share.data());
  world.all_reduce(summed, ReduceOp::kSum);
  world.all_reduce(averaged, ReduceOp::kAverage);
  copy(divided.data(), summed.data);
  copy(share.data(), averaged.data);
  world.ours->barrier({});
  int num_other = 0;
  float units = 0;
  for (std::size_t i = 0; i < share.size(); ++i) {
    num_other += share[i] != divided[i];
    units = std::max(units, std::abs(share[i] - divided[i]) * 0x1p24F);
  }
  if (rank == 0) {
    std::printf("{\"numbers\": %zu, \"ranks\": %d, \"other\": %d, \"most_units\": %.1f}\n",
                share.size(), num_ranks, num_other, static_cast<double>(units));
  }
  if (units <= 1) return;
  throw Error(ErrorCode::kProtocol, "an average differs from NCCL's by " + std::to_string(units) +
                                        " units in the last place");
}

// CUDA's own functions, of the runtime that is loaded; CUDA 11.4 and later.
struct GraphApi {
  template <typename Function>
  static Function find(const char* name) {
    for (const char* library : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
      void* const handle = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD);
      void* const found = handle != nullptr ? ::dlsym(handle, name) : nullptr;
      if (found != nullptr) return reinterpret_cast<Function>(found);
    }
    throw Error(ErrorCode::kUnsupported, std::string("no CUDA runtime is loaded that has ") + name);
  }

  static constexpr int kStrictMode = 0;  // cudaStreamCaptureModeGlobal, PyTorch's
  int (*begin)(nccl::Stream, int) = find<int (*)(nccl::Stream, int)>("cudaStreamBeginCapture");
  int (*end)(nccl::Stream, void**) = find<int (*)(nccl::Stream, void**)>("cudaStreamEndCapture");
  int (*instantiate)(void**, void*, unsigned long long) =
      find<int (*)(void**, void*, unsigned long long)>("cudaGraphInstantiateWithFlags");
  int (*destroy)(void*) = find<int (*)(void*)>("cudaGraphDestroy");
  int (*destroy_executable)(void*) = find<int (*)(void*)>("cudaGraphExecDestroy");
  int (*launch)(void*, nccl::Stream) = find<int (*)(void*, nccl::Stream)>("cudaGraphLaunch");
};

// Captures beside a watchdog that has operations under way; each replay has to give the maximum.
void graph(World& world, int count) {
  const GraphApi api;
  const TensorView data = world.zeros(1 << 12), large = world.zeros(64 << 20);
  nccl::Stream stream = nullptr;
  world.check(world.cuda->stream_create_high_priority(&stream), "cudaStreamCreate");
  world.ours->follow_stream([stream](int) { return stream; });
  const auto copy = [&](void* to, const void* from) {
    world.check(world.cuda->memory_copy(to, from, data.size_bytes(), stream), "cudaMemcpyAsync");
    world.check(world.cuda->stream_synchronize(stream), "cudaStreamSynchronize");
  };
  const auto reduce_all = [&] {
    for (int i = 0; i < count; ++i) world.all_reduce(data, ReduceOp::kMax);
  };
  reduce_all();  // NCCL connects now, not in the capture
  void* captured = nullptr;
  void* executable = nullptr;
  // One rank's sum would be no operation.
  for (int i = 0; i < 8; ++i) world.all_reduce(large, ReduceOp::kMax);
  world.check(api.begin(stream, GraphApi::kStrictMode), "cudaStreamBeginCapture");
  reduce_all();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the watchdog looks, three times
  world.check(api.end(stream, &captured), "cudaStreamEndCapture");
  world.check(api.instantiate(&executable, captured, 0), "cudaGraphInstantiate");
  double eager_us = 0, replayed_us = 0;
  constexpr int kRepeats = 50;
  for (int i = 0; i < kRepeats; ++i) {
    std::vector<float> values(data.count, static_cast<float>(world.session->rank() + i));
    copy(data.data, values.data());
    world.ours->barrier({});
    auto begin = Clock::now();
    world.check(api.launch(executable, stream), "cudaGraphLaunch");
    world.check(world.cuda->stream_synchronize(stream), "cudaStreamSynchronize");
    replayed_us += 1e6 * seconds_since(begin);
    copy(values.data(), data.data);
    const auto wanted = static_cast<float>(world.session->world_size() - 1 + i);
    if (std::count(values.begin(), values.end(), wanted) != static_cast<long>(values.size())) {
      throw Error(ErrorCode::kProtocol, "the maximum is not " + std::to_string(wanted));
    }
    world.ours->barrier({});
    begin = Clock::now();
    reduce_all();
    world.check(world.cuda->stream_synchronize(stream), "cudaStreamSynchronize");
    eager_us += 1e6 * seconds_since(begin);
  }
  world.ours->barrier({});
  api.destroy_executable(executable);  // NCCL's destroy waits for both
  api.destroy(captured);
  if (world.session->rank() != 0) return;
  std::printf("{\"all_reduces\": %d, \"bytes\": %zu, \"eager_us\": %.1f, \"replayed_us\": %.1f}\n",
              count, data.size_bytes(), eager_us / kRepeats, replayed_us / kRepeats);
}

void say(const Session& session, Clock::time_point begin, const std::string& what) {
  std::printf("{\"rank\": %d, \"at_s\": %.2f, \"what\": \"%s\"}\n", session.rank(),
              seconds_since(begin), json_text(what, 2'000).c_str());
  std::fflush(stdout);
}

// By Session, as a program would.
void trouble(bool dies, double timeout_s, double sleep_s) {
  const auto session = Session::from_env();
  CommunicatorOptions options;
  options.init_timeout = std::chrono::seconds(40);
  options.blocking_wait = true;
  auto comm = session->make_communicator(BackendChoice::kNccl, options);
  auto memory = comm->allocate(1 << 20);
  const TensorView view{.data = memory->data(),
                        .count = 1 << 18,
                        .dtype = DType::kFloat32,
                        .device = {Device::Kind::kCuda, session->env().device}};
  for (int i = 0; i < 5; ++i) comm->all_reduce(view, ReduceOp::kSum);
  comm->barrier();
  const auto begin = Clock::now();
  const bool first_round = session->env().restart_count == 0;
  say(*session, begin, "5 all-reduces done, round " + std::to_string(session->env().round));
  if (session->rank() == 1 && first_round) {
    if (dies) {
      std::this_thread::sleep_for(std::chrono::seconds(1));  // the other waits on its GPU by now
      say(*session, begin, "kills itself");
      std::raise(SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(sleep_s));
    say(*session, begin, "comes");
  }
  CallOptions call;
  call.timeout = std::chrono::milliseconds(static_cast<int>(timeout_s * 1000));
  bool failed = false;
  try {
    comm->all_reduce(view, ReduceOp::kSum, call);
    say(*session, begin, "the all-reduce is done");
  } catch (const Error& error) {
    failed = true;
    say(*session, begin, std::string("error: ") + error.what());
  }
  memory.reset();
  comm.reset();
  say(*session, begin, "the communicator is gone");
  if (failed != first_round) {
    throw Error(ErrorCode::kProtocol,
                failed ? "the all-reduce failed" : "the all-reduce ended well");
  }
}

int usage() {
  std::fprintf(stderr,
               "usage: nccl_host host BYTESxCOUNT,... [average] | stress BYTES COUNT SECONDS | "
               "average | graph COUNT | absent TIMEOUT_S SLEEP_S | die TIMEOUT_S\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "host" && argc > 2) {
      World world;
      host_time(world, argv[2], argc > 3 ? ReduceOp::kAverage : ReduceOp::kSum);
    } else if (mode == "stress" && argc > 4) {
      World world;
      stress(world, std::strtoul(argv[2], nullptr, 10), std::atoi(argv[3]), std::atof(argv[4]));
    } else if (mode == "average") {
      World world;
      average(world);
    } else if (mode == "graph" && argc > 2) {
      World world;
      graph(world, std::atoi(argv[2]));
    } else if (mode == "absent" && argc > 3) {
      trouble(false, std::atof(argv[2]), std::atof(argv[3]));
    } else if (mode == "die" && argc > 2) {
      trouble(true, std::atof(argv[2]), 0);
    } else {
      return usage();
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_host: %s\n", error.what());
    return 1;
  }
}
