// SPDX-License-Identifier: Apache-2.0
// The bytes of an incomplete request. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

namespace ddprun::store {

// A buffer that grows with realloc(3), which moves the pages of a large block. A std::string would
// copy 32 MiB while other clients wait.
class InputBytes {
 public:
  std::string_view view() const { return {bytes_.get(), size_}; }
  std::size_t size() const { return size_; }

  // Appends bytes. The room grows beyond `most`, the known need, only if the bytes require it.
  void append(std::string_view bytes, std::size_t most) {
    const std::size_t size = size_ + bytes.size();
    if (size > capacity_) {
      constexpr std::size_t kSlackBytes = 64 << 10;
      grow_to(std::min(std::max(most, size), size + std::max(size, kSlackBytes)));
    }
    std::memcpy(bytes_.get() + size_, bytes.data(), bytes.size());
    size_ = size;
  }

  // Removes the first bytes and frees their memory.
  void drop_front(std::size_t size) {
    if (size == 0) return;
    InputBytes rest;
    if (size < size_) rest.append(view().substr(size), size_ - size);
    std::swap(*this, rest);
  }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };

  void grow_to(std::size_t capacity) {
    auto* const bytes = static_cast<char*>(std::realloc(bytes_.get(), capacity));
    if (bytes == nullptr) throw std::bad_alloc();
    static_cast<void>(bytes_.release());
    bytes_.reset(bytes);
    capacity_ = capacity;
  }

  std::unique_ptr<char, Free> bytes_;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace ddprun::store
