// SPDX-License-Identifier: Apache-2.0
// A spare's workers that run before their node has a place in a round (--prewarm): who of them
// waits for it, and what each is sent. Pure but for the function that sends.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ddprun::agent {

class Parking {
 public:
  using Variables = std::vector<std::string>;  // "NAME=value"
  // False: that worker isn't connected any more; it is about to end, or comes again.
  using Send = std::function<bool(int local_rank, const Variables& news)>;

  // `started_with`: each worker's environment.
  Parking(std::vector<Variables> started_with, Send send);

  // A worker waits; it may do so again after its connection ended.
  void arrived(int local_rank);

  // The node has a place: each worker that waits, or comes later, is sent what differs from the
  // environment that it was started with. `all_assigned` is called once, after the last one.
  void assign(const std::vector<Variables>& environments, std::function<void()> all_assigned);

 private:
  struct Worker {
    Variables started_with, news;
    bool waits = false;
    bool assigned = false;
  };
  void send_to(std::size_t index);

  const Send send_;
  std::vector<Worker> workers_;
  std::function<void()> all_assigned_;
  std::size_t num_assigned_ = 0;
  bool has_place_ = false;
};

}  // namespace ddprun::agent
