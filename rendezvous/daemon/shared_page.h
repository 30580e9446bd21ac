// SPDX-License-Identifier: Apache-2.0
// Pages for many simultaneous requests, at little cost for the agents. I/O thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"

namespace ddprun::rendezvous {

// A page whose length grows with the jobs, made once for all waiting requests. Making pages takes
// at most a twentieth of the I/O thread's time. While that is used up, or a page is being made,
// requests wait for the next page, which answers all of them. So no answer is older than its
// request.
class SharedPage {
 public:
  using Told = std::function<void(const std::string& body)>;
  // `cost` is the I/O thread's time for the page.
  using Made = std::function<void(const std::string& body, Clock::duration cost)>;

  // `make` calls `made` once, at once or later. After this object's end the call has no effect.
  SharedPage(boost::asio::io_context& io, std::function<void(Made made)> make);
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  // Calls `told` once, at once or later, unless this is destroyed before.
  void ask(Told told);

  static constexpr int kShare = 20;

 private:
  void make_when_due();
  void make_for_all();

  const std::function<void(Made)> make_;
  boost::asio::steady_timer timer_;
  Clock::time_point next_{};  // the next page isn't made before
  std::vector<Told> waiting_;
  bool is_busy_ = false;  // a page is being made, or waits for its time
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for waits that outlive this
};

// Limits the pages that are requested, or made and not sent yet, so that clients that don't read
// can't gather many.
class WaitingPages {
 public:
  // Limits of all waiting pages together. A single page may always wait, whatever its size.
  struct Limits {
    std::size_t num = 256;
    std::size_t bytes = std::size_t{64} << 20;
  };

  explicit WaitingPages(Limits limits) : limits_(limits) {}

  // A page's place. Its destruction gives it up, whether the page was sent or not.
  using Place = std::shared_ptr<const void>;

  // Returns a place; null: too many pages wait.
  Place admit(std::size_t page_bytes);
  std::size_t num() const { return now_->num; }

 private:
  struct Now {
    std::size_t num = 0, bytes = 0;
  };
  const Limits limits_;
  const std::shared_ptr<Now> now_ = std::make_shared<Now>();  // shared with the places
};

}  // namespace ddprun::rendezvous
