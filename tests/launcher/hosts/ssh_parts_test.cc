// SPDX-License-Identifier: Apache-2.0
#include "common/environment.h"
#include "common/shell_words.h"
#include "launcher/hosts/fleet_plan.h"
#include "launcher/hosts/own_lines.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::Contains;
using Words = std::vector<std::string>;

namespace {

constexpr int exited(int code) { return code << 8; }

}  // namespace

TEST_CASE("ssh: a command line is taken apart as a shell does it") {
  CHECK(split_words("ssh") == Words{"ssh"});
  CHECK(split_words(" ssh  -p 22 ") == Words{"ssh", "-p", "22"});
  CHECK(split_words(R"(a 'b c' "d \" e" f\ g '')") == Words{"a", "b c", "d \" e", "f g", ""});
  CHECK(split_words(R"('$(x)'"`y`")") == Words{"$(x)`y`"});
  for (const char* text : {"", "  ", "'a", "\"a", "a\\"}) {
    CAPTURE(text);
    CHECK_FALSE(split_words(text).has_value());
  }
}

TEST_CASE("ssh: the host stands behind --, the program is one word for the shell there") {
  const Words argv = agent_command({"ssh", "-p", "22"}, "me@n1", "/opt/a b/ddprun");
  CHECK(argv[1] == "-p");
  REQUIRE(argv.size() > 4);
  CHECK(argv[argv.size() - 3] == "--");
  CHECK(argv[argv.size() - 2] == "me@n1");
  CHECK(argv.back() == "'/opt/a b/ddprun' --from-channel");
  CHECK(agent_command({"docker", "exec", "-i", "job-{host}"}, "n1", "/a b/ddprun") ==
        Words{"docker", "exec", "-i", "job-n1", "/a b/ddprun", "--from-channel"});
}

TEST_CASE("ssh: a failure is told in ssh's last words, and whether another try can help") {
  const auto fail = [](int status, const std::string& said) {
    return command_failure(status, said, {"/usr/bin/ssh"}, "/opt/ddprun");
  };
  const CommandFailure refused =
      fail(exited(255), "Warning: x\nssh: connect to host n1 port 22: Connection refused\r\n");
  CHECK(refused.code == ExitCode::kRetryable);
  CHECK(refused.text == "ssh ended with 255: ssh: connect to host n1 port 22: Connection refused");
  CHECK(fail(exited(255), "me@n1: Permission denied (publickey).\n").code == ExitCode::kUsage);
  CHECK(fail(exited(255), "x\nHost key verification failed.\n").code == ExitCode::kUsage);
  const CommandFailure missing = fail(exited(127), "bash: line 1: /opt/ddprun: No such file\n");
  CHECK(missing.code == ExitCode::kUsage);
  CHECK_THAT(missing.text, Contains("no ddprun at /opt/ddprun") && Contains("--remote-ddprun"));
  CHECK_THAT(fail(exited(0), "").text, Contains("ended with 0; does it hand on standard input"));
  CHECK_THAT(fail(exited(2), "ddprun: unknown flag --from-channel\n").text,
             Contains("another version"));
  CHECK(fail(9, "").text == "ssh was ended by SIGKILL");
  CHECK(fail(exited(1), "a\x1b[31m\n").text == "ssh ended with 1: a\\x1b[31m");
}

TEST_CASE("environment: variables of a machine or a session stay, wishes count") {
  const Environment mine = {
      {"PATH", "/venv/bin"},         {"HOME", "/root"},       {"PWD", "/x"},
      {"NCCL_DEBUG", "INFO"},        {"SSH_AUTH_SOCK", "/s"}, {"DDPRUN_SSH", "x"},
      {"TMPDIR", "/scratch"},        {"PET_NNODES", "2"},     {"SECRET", "a b\n"},
      {"DDPRUN_NCCL_LIBRARY", "/l"}, {"BASH_FUNC_f%%", "()"}};
  CHECK(forwarded_environment(mine, {}) ==
        Words{"DDPRUN_NCCL_LIBRARY=/l", "NCCL_DEBUG=INFO", "PATH=/venv/bin", "SECRET=a b\n"});
  CHECK(forwarded_environment(mine, {"TMPDIR", "-PATH", "A=1", "A=2=3", "UNSET", "-SECRET",
                                     "E=", "-DDPRUN_NCCL_LIBRARY"}) ==
        Words{"A=2=3", "E=", "NCCL_DEBUG=INFO", "TMPDIR=/scratch"});
  CHECK(check_env_wish("A=b c") == "");
  CHECK(check_env_wish("-A") == "");
  for (const char* wish : {"", "=1", "-", "a b"}) {
    CAPTURE(wish);
    CHECK_FALSE(check_env_wish(wish).empty());
  }
}

TEST_CASE("own lines: named, and said once however many nodes say them") {
  OwnLines lines({"a", "b", "c"});
  CHECK(lines.pass(1, "[ddprun] waiting\n") == "[ddprun] b: waiting\n");
  CHECK(lines.pass(0, "[ddprun] waiting\n") == "");
  CHECK(lines.pass(2, "[ddprun] wai") == "");
  CHECK(lines.pass(2, "ting\n[2] out") == "[2] out");
  CHECK(lines.pass(2, "put\n") == "put\n");
  // It comes again, so it is printed.
  CHECK(lines.pass(0, "[ddprun] waiting\n") == "[ddprun] a: waiting\n");
  CHECK(lines.pass(0, "ddprun: no such program\n") == "ddprun: a: no such program\n");
  CHECK(lines.pass(0, "[dd") == "");
  CHECK(lines.end(0) == "[dd");
}

TEST_CASE("own lines: workers' bytes pass unchanged, memory is bounded") {
  OwnLines lines({"a"});
  CHECK(lines.pass(0, "[0] x\n\n[ddprun2\n") == "[0] x\n\n[ddprun2\n");
  const std::string text = "[ddprun] " + std::string(OwnLines::kMostHeldBytes, 'x');
  CHECK(lines.pass(0, text) == text);
  CHECK(lines.pass(0, "y\n") == "y\n");
  for (int i = 0; i < 3000; ++i) lines.pass(0, "[ddprun] line " + std::to_string(i) + "\n");
  CHECK(lines.pass(0, "[ddprun] line 2999\n") == "[ddprun] a: line 2999\n");
}
