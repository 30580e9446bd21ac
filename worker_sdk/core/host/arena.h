// SPDX-License-Identifier: Apache-2.0
// Buffers in shared memory that every rank of the node has mapped: collectives on them need no
// copy. Used by the thread that calls the communicator, and by the one that executes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/host/shared_memory.h"

namespace ddprun::host {

class Arena {
 public:
  struct Place {
    int buffer_id = -1;
    std::size_t offset = 0;
  };

  Arena(int local_index, int num_local);

  // Bytes that one memfd needs for buffers of `size_bytes` on every rank of the node.
  std::size_t mapping_bytes(std::size_t size_bytes) const;

  // Takes a mapping of mapping_bytes(size_bytes). Ids count up from 0, the same on every rank.
  std::unique_ptr<CommBuffer> adopt(SharedMapping mapping, std::size_t size_bytes);

  // Where [data, data + size_bytes) lies, if in one buffer of this rank.
  std::optional<Place> find(const void* data, std::size_t size_bytes) const;
  // The same place in the buffer of another rank of the node; nullptr when this rank has already
  // dropped its own, or `size_bytes` don't fit.
  std::byte* resolve(int local, const Place& place, std::size_t size_bytes) const;

 private:
  struct Book;
  class Buffer;

  std::size_t stride(std::size_t size_bytes) const;

  const int local_index_;
  const int num_local_;
  // Shared with the buffers, which strike themselves out when they are dropped.
  const std::shared_ptr<Book> book_;
  int next_id_ = 0;
};

}  // namespace ddprun::host
