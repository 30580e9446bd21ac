// SPDX-License-Identifier: Apache-2.0
#include "common/json.h"

#include <algorithm>
#include <boost/json/memory_resource.hpp>
#include <boost/json/parse.hpp>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using ddprun::kMostJsonMembers;
using ddprun::parsed_json;
namespace json = boost::json;

namespace {

std::string object_of(std::size_t num_members) {
  std::string text = "{";
  for (std::size_t i = 0; i < num_members; ++i) {
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  }
  return text + "}";
}

struct LargestBlock : json::memory_resource {
  std::size_t bytes = 0;

 private:
  void* do_allocate(std::size_t size, std::size_t) override {
    bytes = std::max(bytes, size);
    return ::operator new(size);
  }
  void do_deallocate(void* block, std::size_t, std::size_t) override { ::operator delete(block); }
  bool do_is_equal(const json::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace

TEST_CASE("parsed_json: an object has so many members at most, at any depth, and repeated or not") {
  json::error_code error;
  CHECK(parsed_json(object_of(kMostJsonMembers), error).as_object().size() == kMostJsonMembers);
  CHECK_FALSE(error);
  std::string repeated = "{\"a\":0";
  for (std::size_t i = 0; i < kMostJsonMembers; ++i) repeated += ",\"a\":0";
  for (const std::string& text :
       {object_of(kMostJsonMembers + 1), "[[1,{\"a\":" + object_of(kMostJsonMembers + 1) + "}]]",
        repeated + "}"}) {
    CHECK(parsed_json(text, error).is_null());
    CHECK(ddprun::json_problem(error) == "an object has more than 1000 members");
  }
  const std::string two = object_of(kMostJsonMembers);
  CHECK_NOTHROW(parsed_json("[" + two + "," + two + "]"));
}

TEST_CASE("parsed_json: an object with too many members is not built") {
  constexpr std::size_t kTableBytes = kMostJsonMembers * sizeof(json::key_value_pair);
  json::error_code error;
  LargestBlock memory, unused;
  CHECK_FALSE(parsed_json(object_of(kMostJsonMembers), error, 32, &memory).is_null());
  CHECK(memory.bytes >= kTableBytes);
  CHECK(parsed_json(object_of(kMostJsonMembers + 1), error, 32, &unused).is_null());
  CHECK(unused.bytes < kTableBytes / 100);
}

TEST_CASE("parsed_json: any other text is what it is to Boost's parser") {
  const std::string deep(32, '['), deep_end(32, ']');
  for (const std::string& text :
       {std::string(""), std::string(" "), std::string("{}"), std::string("[]x"),
        std::string(" [1,-2,18446744073709551615,1.5e300,true,false,null] \n"),
        std::string(R"({"a":1,"b":{"c":[]},"a":2})"), std::string(R"({"a":"\u00e9\n\\ é"})"),
        std::string("[\"\xff\"]"), std::string("{\"a\""), std::string("[1,]"), std::string("nul"),
        "[\"" + std::string(10'000, 'x') + R"(\ty"])", "{\"" + std::string(10'000, 'k') + "\":1}",
        std::string("\0", 1), deep + deep_end, "[" + deep + deep_end + "]"}) {
    INFO(text);
    json::error_code error, expected;
    const json::value value = json::parse(text, expected);
    CHECK(parsed_json(text, error) == value);
    CHECK(error == expected);
  }
}

TEST_CASE("parsed_object: one line says why there is none") {
  using ddprun::parsed_object;
  CHECK(parsed_object(R"({"a":1})").at("a") == 1);
  const auto error_of = [](const std::string& text) {
    return std::string(ddprun::test::error_of([&] { parsed_object(text); }).what());
  };
  CHECK(error_of("[]") == "it is no JSON object");
  CHECK(error_of("{") == "it is no such JSON: incomplete JSON");
  CHECK(error_of(object_of(1001)) == "it is no such JSON: an object has more than 1000 members");
}
