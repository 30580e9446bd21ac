// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/input_bytes.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace ddprun::store {

void InputBytes::append(std::string_view bytes, std::size_t most) {
  const std::size_t size = size_ + bytes.size();
  if (size > capacity_) {
    constexpr std::size_t kSlackBytes = 64 << 10;
    grow_to(std::min(std::max(most, size), size + std::max(size, kSlackBytes)));
  }
  std::memcpy(bytes_.get() + size_, bytes.data(), bytes.size());
  size_ = size;
}

void InputBytes::drop_front(std::size_t size) {
  if (size == 0) return;
  InputBytes rest;
  if (size < size_) rest.append(view().substr(size), size_ - size);
  std::swap(*this, rest);
}

void InputBytes::grow_to(std::size_t capacity) {
  auto* const bytes = static_cast<char*>(std::realloc(bytes_.get(), capacity));
  if (bytes == nullptr) throw std::bad_alloc();
  static_cast<void>(bytes_.release());
  bytes_.reset(bytes);
  capacity_ = capacity;
}

}  // namespace ddprun::store
