// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/memory.h"
#include "worker_sdk/core/large_memory.h"

namespace ddprun::host {

UniqueFd create_shared_memory(const char* name, std::size_t size_bytes) {
  UniqueFd fd = make_memory_file(name);
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

struct Arena::Book {
  struct Entry {
    std::byte* base = nullptr;  // start of local rank 0's buffer
    std::size_t stride = 0;
    std::size_t size_bytes = 0;
  };
  std::mutex mutex;
  std::map<int, Entry> entries;  // guarded by mutex
};

class Arena::Buffer final : public CommBuffer {
 public:
  Buffer(std::shared_ptr<Book> book, int id, SharedMapping mapping, std::byte* data,
         std::size_t size_bytes)
      : book_(std::move(book)),
        id_(id),
        mapping_(std::move(mapping)),
        data_(data),
        size_bytes_(size_bytes) {}
  ~Buffer() override {
    const std::lock_guard lock(book_->mutex);
    book_->entries.erase(id_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  const std::shared_ptr<Book> book_;
  const int id_;
  const SharedMapping mapping_;
  std::byte* const data_;
  const std::size_t size_bytes_;
};

Arena::Arena(int local_index, int num_local)
    : local_index_(local_index), num_local_(num_local), book_(std::make_shared<Book>()) {}

std::size_t Arena::stride(std::size_t size_bytes) const {
  constexpr std::size_t kPage = 4096;
  return std::max(kPage, (size_bytes + kPage - 1) / kPage * kPage);
}

std::unique_ptr<CommBuffer> Arena::adopt(SharedMapping mapping, std::size_t size_bytes) {
  DDPRUN_CHECK(mapping.size_bytes() == mapping_bytes(size_bytes));
  const std::size_t step = stride(size_bytes);
  std::byte* own = mapping.data() + step * static_cast<std::size_t>(local_index_);
  const int id = next_id_++;
#ifdef MADV_POPULATE_WRITE
  // Best effort: otherwise the first collectives pay for the page faults.
  ::madvise(own, step, MADV_POPULATE_WRITE);
#endif
  {
    const std::lock_guard lock(book_->mutex);
    book_->entries[id] = {.base = mapping.data(), .stride = step, .size_bytes = size_bytes};
  }
  return std::make_unique<Buffer>(book_, id, std::move(mapping), own, size_bytes);
}

std::optional<Arena::Place> Arena::find(const void* data, std::size_t size_bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(book_->mutex);
  for (const auto& [id, entry] : book_->entries) {
    const auto begin = reinterpret_cast<std::uintptr_t>(entry.base) +
                       entry.stride * static_cast<std::size_t>(local_index_);
    if (address < begin || address - begin > entry.size_bytes) continue;
    const std::size_t offset = address - begin;
    if (size_bytes <= entry.size_bytes - offset) return Place{.buffer_id = id, .offset = offset};
  }
  return std::nullopt;
}

std::byte* Arena::resolve(int local, const Place& place, std::size_t size_bytes) const {
  const std::lock_guard lock(book_->mutex);
  const auto found = book_->entries.find(place.buffer_id);
  if (found == book_->entries.end()) return nullptr;
  const Book::Entry& entry = found->second;
  if (place.offset > entry.size_bytes || size_bytes > entry.size_bytes - place.offset) {
    return nullptr;
  }
  return entry.base + entry.stride * static_cast<std::size_t>(local) + place.offset;
}

}  // namespace ddprun::host
