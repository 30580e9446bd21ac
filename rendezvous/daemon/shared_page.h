// SPDX-License-Identifier: Apache-2.0
// A page that grows with what there is, for all who ask for it: making it takes at most a twentieth
// of the io thread's time, however many ask, so that no crowd of readers keeps agents waiting. Who
// asks while that time is used up waits for the next one, and gets it with all the others. So
// nobody is shown how things were before they asked. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"

namespace ddprun::rendezvous {

class SharedPage {
 public:
  using Told = std::function<void(const std::string& body)>;

  SharedPage(boost::asio::io_context& io, std::function<std::string()> make);
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  // `told` is called once, at once or later, unless this ends before.
  void ask(Told told);

  static constexpr int kShare = 20;

 private:
  void make_for_all();

  const std::function<std::string()> make_;
  boost::asio::steady_timer timer_;
  Clock::time_point next_{};  // not before
  std::vector<Told> waiting_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for a wait that outlives this
};

}  // namespace ddprun::rendezvous
