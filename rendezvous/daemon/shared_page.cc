// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/shared_page.h"

#include <boost/system/error_code.hpp>
#include <utility>

#include "rendezvous/asio/waits.h"

namespace ddprun::rendezvous {

SharedPage::SharedPage(boost::asio::io_context& io, std::function<void(Made)> make)
    : make_(std::move(make)), timer_(io) {}

void SharedPage::ask(Told told) {
  waiting_.push_back(std::move(told));
  make_when_due();
}

void SharedPage::make_when_due() {
  if (waiting_.empty() || std::exchange(is_busy_, true)) return;
  if (Clock::now() >= next_) return make_for_all();
  run_at(timer_, next_, [this, weak = std::weak_ptr<int>(alive_)] {
    if (!weak.expired()) make_for_all();
  });
}

void SharedPage::make_for_all() {
  make_([this, weak = std::weak_ptr<int>(alive_), all = std::exchange(waiting_, {})](
            const std::string& body, Clock::duration cost) {
    if (weak.expired()) return;
    next_ = Clock::now() + cost * kShare;
    for (const Told& told : all) told(body);
    if (weak.expired()) return;
    is_busy_ = false;
    make_when_due();
  });
}

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
