// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/c/foreign_store.h"

#include "common/clock.h"
#include "common/error.h"
#include "common/text.h"

namespace ddprun::c {

void ForeignStore::refuse(const char* operation) {
  throw Error(ErrorCode::kUnsupported,
              concat(operation, ": a store of the program's own has no such call here"));
}

std::string ForeignStore::call(const char* operation, std::string_view key,
                               const std::function<int(ddprun_reply*)>& make) const {
  ddprun_reply reply;
  const int status = make(&reply);
  if (status == DDPRUN_OK) return std::move(reply.bytes);
  const bool is_known = status > DDPRUN_OK && status <= DDPRUN_SYSTEM;
  throw Error(is_known ? static_cast<ErrorCode>(status - 1) : ErrorCode::kConnectionLost,
              concat("the program's store, ", operation, "(", key,
                     "): ", reply.bytes.empty() ? concat("status ", status) : reply.bytes));
}

std::unique_ptr<store::Store> ForeignStore::clone() {
  auto other = std::make_unique<ForeignStore>(calls_, context_);
  other->set_timeout(timeout_);
  return other;
}

void ForeignStore::set(std::string_view key, std::string_view value) {
  call("set", key, [&](ddprun_reply* reply) {
    return calls_.set(context_, key.data(), key.size(), value.data(), value.size(), reply);
  });
}

std::string ForeignStore::get(std::string_view key) {
  wait({std::string(key)});
  return call("get", key, [&](ddprun_reply* reply) {
    return calls_.get(context_, key.data(), key.size(), reply);
  });
}

std::int64_t ForeignStore::add(std::string_view key, std::int64_t delta) {
  std::int64_t sum = 0;
  call("add", key, [&](ddprun_reply* reply) {
    return calls_.add(context_, key.data(), key.size(), delta, &sum, reply);
  });
  return sum;
}

std::string ForeignStore::compare_set(std::string_view key, std::string_view expected,
                                      std::string_view desired) {
  return call("compare_set", key, [&](ddprun_reply* reply) {
    return calls_.compare_set(context_, key.data(), key.size(), expected.data(), expected.size(),
                              desired.data(), desired.size(), reply);
  });
}

bool ForeignStore::check(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    int exists = 0;
    call("check", key, [&](ddprun_reply* reply) {
      return calls_.check(context_, key.data(), key.size(), &exists, reply);
    });
    if (exists == 0) return false;
  }
  return true;
}

void ForeignStore::wait(const std::vector<std::string>& keys) {
  const Deadline deadline = Deadline::after(timeout_);
  for (const std::string& key : keys) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    call("wait", key, [&](ddprun_reply* reply) {
      return calls_.wait(context_, key.data(), key.size(), left.count(), reply);
    });
  }
}

bool ForeignStore::delete_key(std::string_view key) {
  int existed = 0;
  call("delete_key", key, [&](ddprun_reply* reply) {
    return calls_.delete_key(context_, key.data(), key.size(), &existed, reply);
  });
  return existed != 0;
}

std::vector<std::string> ForeignStore::multi_get(const std::vector<std::string>& keys) {
  wait(keys);
  std::vector<std::string> values;
  for (const std::string& key : keys) values.push_back(get(key));
  return values;
}

}  // namespace ddprun::c
