// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/call_group.h"

#include <cstring>
#include <exception>
#include <utility>

#include "common/throw_error.h"

namespace ddprun {
namespace {

class JoinedWork final : public Work {
 public:
  explicit JoinedWork(std::vector<WorkPtr> works) : works_(std::move(works)) {}

  bool is_completed() override {
    for (const WorkPtr& work : works_) {
      if (!work->is_completed()) return false;
    }
    return true;
  }
  // Waits for all of them, even after an error: the caller may then use their buffers again.
  void wait() override {
    std::exception_ptr error;
    for (const WorkPtr& work : works_) {
      try {
        work->wait();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace

WorkPtr joined_work(std::vector<WorkPtr> works) {
  return std::make_shared<JoinedWork>(std::move(works));
}

WorkPtr CallGroup::run(const std::function<void()>& calls, bool async) {
  if (is_open_) throw_invalid("a group of calls inside another group");
  starts_.clear();
  sends_.clear();
  receives_.clear();
  is_open_ = true;
  try {
    calls();
    check_messages_to_self();
  } catch (...) {
    is_open_ = false;
    throw;
  }
  is_open_ = false;
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    if (sends_[i].count == 0) continue;
    std::memmove(receives_[i].data, sends_[i].data, sends_[i].size_bytes());
  }
  std::vector<WorkPtr> works;
  try {
    for (const auto& start : starts_) works.push_back(start());
  } catch (...) {  // the communicator has failed, so the started ones fail, too
    const std::exception_ptr error = std::current_exception();
    try {
      joined_work(std::move(works))->wait();
    } catch (const Error&) {  // a consequence of the first error
    }
    std::rethrow_exception(error);
  }
  WorkPtr work = joined_work(std::move(works));
  if (!async) work->wait();
  return work;
}

void CallGroup::check_messages_to_self() const {
  if (sends_.size() != receives_.size()) {
    throw_invalid("a group with ", sends_.size(), " sends and ", receives_.size(),
                  " receives of this rank with itself");
  }
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    if (sends_[i].count == receives_[i].count && sends_[i].dtype == receives_[i].dtype) continue;
    throw_invalid("this rank sends itself ", sends_[i].count, " ", to_string(sends_[i].dtype),
                  " and receives ", receives_[i].count, " ", to_string(receives_[i].dtype));
  }
}

}  // namespace ddprun
