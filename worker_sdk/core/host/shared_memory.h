// SPDX-License-Identifier: Apache-2.0
// Anonymous shared memory (memfd) and its mapping. It has no name in any file system, so nothing
// is left when its last holder is killed.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "common/unique_fd.h"
#include "worker_sdk/core/communicator.h"

namespace ddprun::host {

// Returns a memfd, zero-filled; its pages are taken when first touched. Throws Error(kSystem).
UniqueFd create_shared_memory(const char* name, std::size_t size_bytes);

// A whole memfd mapped for reading and writing.
class SharedMapping {
 public:
  SharedMapping() = default;
  // Throws Error(kSystem), or Error(kProtocol) if the memory is smaller than `size_bytes`.
  SharedMapping(int fd, std::size_t size_bytes);
  // Returns memory for a node of one rank, which shares it with no other: it may be in huge pages.
  static SharedMapping of_one_rank(std::size_t size_bytes);
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Buffers in shared memory that every rank of the node has mapped: collectives on them need no
// copy. Used by the thread that calls the communicator, and by the one that executes operations.
class Arena {
 public:
  struct Place {
    int buffer_id = -1;
    std::size_t offset = 0;
  };

  Arena(int local_index, int num_local);

  // Returns the bytes that one memfd needs for buffers of `size_bytes` on every rank of the node.
  std::size_t mapping_bytes(std::size_t size_bytes) const {
    return stride(size_bytes) * static_cast<std::size_t>(num_local_);
  }

  // Makes a buffer over a mapping of mapping_bytes(size_bytes). Ids count up from 0, the same on
  // every rank.
  std::unique_ptr<CommBuffer> adopt(SharedMapping mapping, std::size_t size_bytes);

  // Returns the place of [data, data + size_bytes); nullopt: it isn't within one buffer of this
  // rank.
  std::optional<Place> find(const void* data, std::size_t size_bytes) const;
  // Returns the same place in the buffer of another rank of the node. nullptr: this rank has
  // already dropped its own, or `size_bytes` don't fit.
  std::byte* resolve(int local, const Place& place, std::size_t size_bytes) const;

 private:
  struct Book;
  class Buffer;

  std::size_t stride(std::size_t size_bytes) const;

  const int local_index_;
  const int num_local_;
  // Shared with the buffers, which remove their entries when they are dropped.
  const std::shared_ptr<Book> book_;
  int next_id_ = 0;
};

}  // namespace ddprun::host
