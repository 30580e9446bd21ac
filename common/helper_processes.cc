// SPDX-License-Identifier: Apache-2.0
#include "common/helper_processes.h"

#include <algorithm>

namespace ddprun {
namespace {

std::vector<pid_t>& pids() {
  static std::vector<pid_t> all;
  return all;
}

}  // namespace

HelperProcess::HelperProcess(pid_t pid) : pid_(pid) { pids().push_back(pid); }

HelperProcess::~HelperProcess() { pids().erase(std::find(pids().begin(), pids().end(), pid_)); }

const std::vector<pid_t>& helper_processes() { return pids(); }

bool is_helper_process(pid_t pid) {
  return std::find(pids().begin(), pids().end(), pid) != pids().end();
}

}  // namespace ddprun
