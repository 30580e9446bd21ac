// SPDX-License-Identifier: Apache-2.0
#include "tests/worker_sdk/core/nccl/rig.h"

#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "common/check.h"
#include "worker_sdk/core/nccl/loader.h"

namespace ddprun::test {

Rig::Rig(int num_fake_devices) {
#ifdef DDPRUN_TEST_REAL_NCCL
  (void)num_fake_devices;
  try {
    cuda = nccl::load_cuda();
    nccl = nccl::load_nccl();
  } catch (const Error& error) {
    why_not_ = error.what();
    return;
  }
  if (const auto result = cuda->device_count(&num_devices_); result != nccl::kCudaSuccess) {
    num_devices_ = 0;
    why_not_ = "no GPU: " + cuda->error_text(result);
    return;
  }
  // Several ranks can share one GPU from NCCL 2.30.3 on. scripts/gpu_check.sh switches it on.
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = nccl->version() >= 23003 && shared != nullptr && shared[0] == '1';
  max_ranks_ = may_share ? std::max(num_devices_, 4) : num_devices_;
#else
  fake_cuda = std::make_shared<FakeCuda>(num_fake_devices);
  fake = std::make_shared<FakeNccl>(fake_cuda);
  cuda = fake_cuda;
  nccl = fake;
  num_devices_ = num_fake_devices;
  max_ranks_ = num_fake_devices;
#endif
  if (max_ranks_ > 0 && why_not_.empty()) {
    why_not_ = "more ranks than GPUs (" + std::to_string(num_devices_) +
               "), and NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL 2.30.3 is not given";
  }
}

Rig::~Rig() {
  free_kept();
  if (!fake) return;
  fake->release_hangs();
  while (fake->num_hanging() > 0) std::this_thread::yield();
  DDPRUN_CHECK(fake->num_violations() == 0);
  DDPRUN_CHECK(fake->num_live_comms() == 0);
  DDPRUN_CHECK(fake->num_live_buffers() == 0);
  DDPRUN_CHECK(fake->num_registered() == 0);
  DDPRUN_CHECK(fake_cuda->num_live_objects() == 0);
}

void Rig::keep(int device, void* data) {
  const std::lock_guard lock(mutex_);
  kept_.emplace_back(device, data);
}

void Rig::free_kept() {
  const std::lock_guard lock(mutex_);
  for (const auto& [device, data] : std::exchange(kept_, {})) {
    cuda->set_device(device);
    cuda->memory_free(data);
  }
}

const char* Rig::skip_reason(int num_ranks) const {
  return num_ranks <= max_ranks_ ? nullptr : why_not_.c_str();
}

NcclOptions Rig::options(int rank, int size) const {
  NcclOptions options;
  options.rank = rank;
  options.size = size;
  options.device = rank % num_devices_;
  options.key_prefix = "round1/comm0/";
  options.timeout = std::chrono::milliseconds(60'000);
  options.init_timeout = std::chrono::milliseconds(60'000);
  options.peer_check_interval = std::chrono::milliseconds(20);
  // So long, because sanitizers look for leaks at the exit.
  options.exit_timeout = std::chrono::milliseconds(600'000);
  // clone() of a SharedStore only copies a shared pointer.
  options.connect_store = [connection = std::make_shared<SharedStore>(store)] {
    return connection->clone();
  };
  options.split_store = std::make_shared<SharedStore>(store);
  return options;
}

std::unique_ptr<NcclCommunicator> Rig::join(const NcclOptions& options) {
  const auto connection = store.clone();
  return nccl::make_nccl_communicator(cuda, nccl, *connection, options);
}

void Rig::run(int size, const std::function<void(NcclOptions)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      NcclOptions mine = options(rank, size);
      Stream stream = nullptr;
      try {
        expect(cuda->set_device(mine.device) == nccl::kCudaSuccess, "set_device works");
        expect(cuda->stream_create_high_priority(&stream) == nccl::kCudaSuccess, "a stream");
        mine.current_stream = [stream](int) -> void* { return stream; };
        body(mine);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
      if (stream != nullptr) cuda->stream_destroy(stream);
    });
  }
  for (auto& thread : threads) thread.join();
  free_kept();
  for (int rank = 0; rank < size; ++rank) {
    try {
      if (errors[static_cast<std::size_t>(rank)]) {
        std::rethrow_exception(errors[static_cast<std::size_t>(rank)]);
      }
    } catch (const std::exception& error) {
      throw std::runtime_error("rank " + std::to_string(rank) + ": " + error.what());
    }
  }
}

void Rig::run_communicators(int size, const std::function<void(NcclCommunicator&, Stream)>& body) {
  run_with(
      size, [](NcclOptions&) {}, body);
}

void Rig::run_with(int size, const std::function<void(NcclOptions&)>& change,
                   const std::function<void(NcclCommunicator&, Stream)>& body) {
  run(size, [&](NcclOptions mine) {
    change(mine);
    const auto communicator = join(mine);
    body(*communicator, static_cast<Stream>(mine.current_stream(mine.device)));
  });
}

DeviceArray::DeviceArray(Rig& rig, Stream stream, int device, DType dtype, std::size_t count)
    : rig_(rig), stream_(stream), device_(device), dtype_(dtype), count_(count) {
  expect(rig_.cuda->memory_allocate(&data_, std::max<std::size_t>(count * size_of(dtype), 1)) ==
             nccl::kCudaSuccess,
         "device memory");
}

DeviceArray::~DeviceArray() {
  rig_.cuda->stream_synchronize(stream_);
  rig_.keep(device_, data_);
}

void DeviceArray::write(const std::vector<double>& values) {
  std::vector<char> host(count_ * size_of(dtype_));
  for (std::size_t i = 0; i < count_; ++i) store_element(host.data(), i, dtype_, values[i]);
  expect(rig_.cuda->memory_copy(data_, host.data(), host.size(), stream_) == nccl::kCudaSuccess,
         "a copy to the device");
  rig_.cuda->stream_synchronize(stream_);
}

std::vector<double> DeviceArray::read() {
  std::vector<char> host(count_ * size_of(dtype_));
  expect(rig_.cuda->memory_copy(host.data(), data_, host.size(), stream_) == nccl::kCudaSuccess,
         "a copy from the device");
  expect(rig_.cuda->stream_synchronize(stream_) == nccl::kCudaSuccess, "the stream is whole");
  std::vector<double> values;
  for (std::size_t i = 0; i < count_; ++i) {
    values.push_back(load_element(host.data(), i, dtype_));
  }
  return values;
}

TensorView DeviceArray::part(std::size_t first, std::size_t count) const {
  TensorView view;
  view.data = static_cast<char*>(data_) + first * size_of(dtype_);
  view.count = count;
  view.dtype = dtype_;
  view.device = Device{Device::Kind::kCuda, device_};
  return view;
}

}  // namespace ddprun::test
