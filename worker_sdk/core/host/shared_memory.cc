// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/error.h"
#include "worker_sdk/core/large_memory.h"

namespace ddprun::host {

UniqueFd create_shared_memory(const char* name, std::size_t size_bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd) throw_system_error("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    throw_system_error("can't size shared memory", errno);
  }
  return fd;
}

SharedMapping::SharedMapping(int fd, std::size_t size_bytes) : size_bytes_(size_bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_system_error("fstat of shared memory", errno);
  if (info.st_size < 0 || static_cast<std::size_t>(info.st_size) < size_bytes) {
    throw Error(ErrorCode::kProtocol,
                "shared memory of another rank has the wrong size: the ranks "
                "run different versions or different calls");
  }
  void* mapped =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) throw_system_error("mmap of shared memory", errno);
  data_ = static_cast<std::byte*>(mapped);
}

SharedMapping SharedMapping::of_one_rank(std::size_t size_bytes) {
  SharedMapping mapping;
  mapping.data_ = map_large_memory(size_bytes);
  mapping.size_bytes_ = size_bytes;
  return mapping;
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_) ::munmap(data_, size_bytes_);
}

}  // namespace ddprun::host
