// SPDX-License-Identifier: Apache-2.0
// HTTP messages as plain values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::http {

inline constexpr unsigned kSwitchingProtocols = 101, kOk = 200, kBadRequest = 400,
                          kUnauthorized = 401, kForbidden = 403, kNotFound = 404,
                          kMethodNotAllowed = 405, kUpgradeRequired = 426,
                          kServiceUnavailable = 503;

// The fields of a header, in their order. Names have no case.
class Fields {
 public:
  void add(std::string_view name, std::string_view value) { all_.emplace_back(name, value); }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Of the first one; "" where there is none.
  std::string_view operator[](std::string_view name) const {
    const std::string* value = find(name);
    return value == nullptr ? std::string_view() : *value;
  }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  const std::string* find(std::string_view name) const;

  std::vector<std::pair<std::string, std::string>> all_;
};

struct Request {
  std::string method, target;
  Fields fields;
  std::string body;
  bool is_upgrade = false;  // to WebSocket
};

struct Response {
  unsigned status = 0;
  Fields fields;
  std::string body;
};

}  // namespace ddprun::http
