// SPDX-License-Identifier: Apache-2.0
// The bytes of a request that has not come as a whole. Pure.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace ddprun::store {

// Grows where it lies: realloc(3) moves the pages of a large block, where a std::string would copy
// 32 MiB while others wait.
class InputBytes {
 public:
  std::string_view view() const { return {bytes_.get(), size_}; }
  std::size_t size() const { return size_; }

  // `most`: it is not known to need more room than that.
  void append(std::string_view bytes, std::size_t most);
  // The memory is given back.
  void drop_front(std::size_t size);

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };

  void grow_to(std::size_t capacity);

  std::unique_ptr<char, Free> bytes_;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace ddprun::store
