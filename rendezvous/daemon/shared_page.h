// SPDX-License-Identifier: Apache-2.0
// Pages that many may ask for at the same time, at little cost for the agents. io thread only.
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

// A page whose length grows with the jobs, made once for all who ask. Making it takes at most a
// twentieth of the io thread's time. While that is used up, or one is being made, requests wait for
// the next one, which answers all of them. So nobody sees a state from before their request.
class SharedPage {
 public:
  using Told = std::function<void(const std::string& body)>;
  // `cost`: the io thread's time that it took.
  using Made = std::function<void(const std::string& body, Clock::duration cost)>;

  // `make` calls `made` once, at once or later; later calls count no more once this has ended.
  SharedPage(boost::asio::io_context& io, std::function<void(Made made)> make);
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  // `told` is called once, at once or later, unless this ends before.
  void ask(Told told);

  static constexpr int kShare = 20;

 private:
  void make_when_due();
  void make_for_all();

  const std::function<void(Made)> make_;
  boost::asio::steady_timer timer_;
  Clock::time_point next_{};  // not before
  std::vector<Told> waiting_;
  bool is_busy_ = false;  // one is being made, or waits for its time
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for a wait that outlives this
};

// Pages that are asked for, or made and not sent yet: readers that hang gather no more of them.
class WaitingPages {
 public:
  // For all that wait at once. A single page waits however large it is.
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
