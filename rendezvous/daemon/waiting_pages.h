// SPDX-License-Identifier: Apache-2.0
// Pages that are asked for, or made and not sent yet: neither a journal that hangs nor readers that
// take their time must gather them without end. io thread only.
#pragma once

#include <cstddef>
#include <memory>

namespace ddprun::rendezvous {

class WaitingPages {
 public:
  // Of all that wait at once. A single page waits however large it is.
  struct Limits {
    std::size_t num = 256;
    std::size_t bytes = std::size_t{64} << 20;
  };

  explicit WaitingPages(Limits limits) : limits_(limits) {}

  // A page's place, given up with it, whether it is sent or not.
  using Place = std::shared_ptr<const void>;

  // Null: as many wait as may, and it is not to.
  Place admit(std::size_t page_bytes);
  std::size_t num() const { return now_->num; }

 private:
  struct Now {
    std::size_t num = 0, bytes = 0;
  };
  const Limits limits_;
  const std::shared_ptr<Now> now_ = std::make_shared<Now>();  // second owners: the places
};

}  // namespace ddprun::rendezvous
