// SPDX-License-Identifier: Apache-2.0
// Anonymous shared memory (memfd) and its mapping. It has no name in any file system, so nothing
// is left when its last holder is killed.
#pragma once

#include <cstddef>

#include "common/unique_fd.h"

namespace ddprun::host {

// Zero-filled; pages are taken when first touched. Throws Error(kSystem).
UniqueFd create_shared_memory(const char* name, std::size_t size_bytes);

// A whole memfd mapped for reading and writing.
class SharedMapping {
 public:
  SharedMapping() = default;
  // Throws Error(kSystem), or Error(kProtocol) where the memory is smaller than `size_bytes`.
  SharedMapping(int fd, std::size_t size_bytes);
  // Memory for a node of one rank, which shares it with nobody: it may lie in huge pages.
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

}  // namespace ddprun::host
