// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/awaiting.h"

#include <chrono>
#include <vector>

#include "common/error.h"

namespace ddprun::doctor {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnswerPatience{5'000};  // of the store itself

}  // namespace

std::string await_key(store::Store& store, const std::string& key, Deadline deadline) {
  store.set_timeout(std::chrono::ceil<milliseconds>(deadline.remaining()) + milliseconds(1));
  return store.get(key);
}

std::map<int, std::string> await_all(store::Store& store, const std::map<int, std::string>& keys,
                                     Deadline deadline) {
  std::map<int, std::string> values;
  std::vector<std::string> names;
  for (const auto& [rank, key] : keys) names.push_back(key);
  if (names.empty()) return values;
  bool are_there = true;
  try {
    store.set_timeout(std::chrono::ceil<milliseconds>(deadline.remaining()) + milliseconds(1));
    store.wait(names);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    are_there = false;
  }
  store.set_timeout(kAnswerPatience);
  for (const auto& [rank, key] : keys) {
    if (are_there || store.check({key})) values[rank] = store.get(key);
  }
  return values;
}

}  // namespace ddprun::doctor
