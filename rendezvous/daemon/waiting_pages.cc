// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/waiting_pages.h"

namespace ddprun::rendezvous {

WaitingPages::Place WaitingPages::admit(std::size_t page_bytes) {
  const bool is_too_much = now_->num > 0 && now_->bytes + page_bytes > limits_.bytes;
  if (now_->num >= limits_.num || is_too_much) return nullptr;
  ++now_->num;
  now_->bytes += page_bytes;
  return {now_.get(), [now = now_, page_bytes](const void*) {
            --now->num;
            now->bytes -= page_bytes;
          }};
}

}  // namespace ddprun::rendezvous
