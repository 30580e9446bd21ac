// SPDX-License-Identifier: Apache-2.0
#include "agent/parking.h"

#include <utility>

#include "agent/worker_environment.h"

namespace ddprun::agent {

Parking::Parking(std::vector<Variables> started_with, Send send)
    : send_(std::move(send)), workers_(started_with.size()) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].started_with = std::move(started_with[i]);
  }
}

void Parking::arrived(int local_rank) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= workers_.size()) return;
  workers_[index].waits = true;
  if (has_place_) send_to(index);
}

void Parking::assign(const std::vector<Variables>& environments,
                     std::function<void()> all_assigned) {
  has_place_ = true;
  all_assigned_ = std::move(all_assigned);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].news = environment_news(workers_[i].started_with, environments.at(i));
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].waits) send_to(i);
  }
}

void Parking::send_to(std::size_t index) {
  Worker& worker = workers_[index];
  if (worker.assigned) return;
  worker.assigned = send_(static_cast<int>(index), worker.news);
  worker.waits = worker.assigned;
  if (worker.assigned && ++num_assigned_ == workers_.size()) {
    std::exchange(all_assigned_, nullptr)();
  }
}

}  // namespace ddprun::agent
