// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/host_list.h"

#include "common/error.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::Contains;

namespace {

// The names with their slots: "n1 n2:4".
std::string shown(const HostList& list) {
  std::string text;
  for (const Host& host : list.hosts) {
    text += (text.empty() ? "" : " ") + host.name;
    if (host.slots != 0) text += ":" + std::to_string(host.slots);
  }
  return text;
}

// The text of the error that `call` throws; empty: it throws none.
template <typename Call>
std::string problem_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

// The list of `text`, as shown() prints it, or the problem.
std::string hosts(std::string_view text) {
  std::string result;
  const std::string problem = problem_of([&] { result = shown(parse_hosts(text, "--hosts")); });
  return problem.empty() ? result : problem;
}
std::string file(std::string_view text) {
  std::string result;
  const std::string problem = problem_of([&] { result = shown(parse_host_file(text, "h.txt")); });
  return problem.empty() ? result : problem;
}

}  // namespace

TEST_CASE("hosts: lists and ranges, with slots or without") {
  CHECK(hosts("h1:4,h2:4") == "h1:4 h2:4");
  CHECK(hosts("n[01-03,07]:8") == "n01:8 n02:8 n03:8 n07:8");
  CHECK(hosts("a, b ,c") == "a b c");
  CHECK(hosts("user@n[1-2]:2,[fe80::1]:3,[::2]") == "user@n1:2 user@n2:2 fe80::1:3 ::2");
  CHECK(hosts("10.0.0.1,node.example.org:16") == "10.0.0.1 node.example.org:16");
  CHECK(hosts("a,,b,") == "a b");
}

TEST_CASE("hosts: files of Open MPI, Hydra, DeepSpeed and Horovod") {
  CHECK(file("aa slots=2\nbb slots=4 max-slots=8\ncc max_slots=3\n") == "aa:2 bb:4 cc:3");
  CHECK(file("host1:4\nhost2:2\n") == "host1:4 host2:2");
  CHECK(file("worker-1 slots=4\nworker-2 slots=4") == "worker-1:4 worker-2:4");
  CHECK(file("n[01-02] slots = 8\nuser@n3\tslots=1") == "n01:8 n02:8 user@n3:1");
}

TEST_CASE("hosts: comments, blank lines, a byte order mark and line ends of any system") {
  CHECK(file("\xef\xbb\xbf# all\r\n\r\n  n1 slots=2  # first\r\nn2\r\n") == "n1:2 n2");
  CHECK(file("n1\rn2") == "n1 n2");
}

TEST_CASE("hosts: fields of other launchers are said and ignored") {
  const HostList list = parse_host_file("n1:4 binding=user:0,1\nn2:4 ifname=ib0\n", "h.txt");
  CHECK(shown(list) == "n1:4 n2:4");
  REQUIRE(list.notes.size() == 2);
  CHECK_THAT(list.notes[0], Contains("h.txt:1") && Contains("binding=user:0,1"));
}

TEST_CASE("hosts: an error is said with its line") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"n1\n\nn[1-\n", "h.txt:3: \"n[1-\" is no host and no range"},
      {"n[3-1]", "h.txt:1: \"n[3-1]\" is no host"},
      {"n1 slots=0", "h.txt:1: slots 0: a host without room"},
      {"n1:0", "h.txt:1: \"n1:0\": slots 0"},
      {"n1:x", "slots \"x\": wants a number"},
      {"n1:", "slots \"\": wants a number"},
      {"n1 slots=-1", "wants a number from 1 to 65536"},
      {"n1 slots=99999999999999999999", "wants a number"},
      {"n1 gpus=4", "h.txt:1: \"gpus=4\": wants slots=N"},
      {"n1 8", "\"8\": wants slots=N"},
      {"n1:4 slots=8", "has two numbers of slots"},
      {"fd00::1 slots=2", "\"fd00::1\": an IPv6 address stands in brackets, as in [fd00::1]"},
      {"u@fd00::1", "\"u@fd00::1\": an IPv6 address stands in brackets, as in [fd00::1]"},
      {"fd00::1:2", "an IPv6 address stands in brackets, as in [fd00::1:2]"},
      {"n1 slots=8 max-slots=4", "slots=8 is more than max-slots=4"},
      {"n1\nn[0-2]", "h.txt:2: n1 is named a second time (first: h.txt:1)"},
      {"n1\nroot@n1", "root@n1 is named a second time"},
      {"a,b", "is no host"},
      {"-oProxyCommand=x", "is no host"},
      {"-l@n1", "is no host"},
      {"n1\x01", "\\x01"},
      {"a'b@n1", "is no host"},
      {"n1/x", "is no host"},
      {"# nothing\n", "h.txt: names no host"},
      {"n[1-20000]", "more than 10000 hosts"},
  };
  for (const auto& [text, problem] : cases) {
    CAPTURE(text);
    CHECK_THAT(file(text), Contains(problem));
    CHECK(file(text).find('\n') == std::string::npos);
  }
  CHECK_THAT(hosts(""), Contains("--hosts: names no host"));
  CHECK_THAT(hosts("n[1-2"), Contains("is no host"));
  CHECK_THAT(hosts("n1,n1"), Contains("a second time"));
}

TEST_CASE("hosts: filters") {
  std::vector<Host> list = parse_hosts("a@n[1-5]:2", "--hosts").hosts;
  filter_hosts(list, "n[2-4]", "n3");
  REQUIRE(list.size() == 2);
  CHECK(list[0].name == "a@n2");
  CHECK(list[1].name == "a@n4");
  CHECK_THAT(problem_of([&] { filter_hosts(list, "", "n9"); }), Contains("n9 is not in the list"));
  CHECK_THAT(problem_of([&] { filter_hosts(list, "n2:1", ""); }), Contains("without slots"));
  CHECK_THAT(problem_of([&] { filter_hosts(list, "", "n2,n4"); }), Contains("leaves no host"));
}
