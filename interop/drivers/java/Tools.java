// Runs main methods of Apache Kafka's command-line tools one after another in one process: starting Java for each
// would take most of the time. What a tool prints, and how it would have ended, is the answer.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    // Some tools catch even this, and go on to print it: the first exit counts, and what was printed until then.
    static class Ended extends Error {
        final int code;
        final String output;
        final String errors;

        Ended(int code) {
            this.code = code;
            System.out.flush();
            System.err.flush();
            output = Tools.output.toString();
            errors = Tools.errors.toString();
            if (first == null) {
                first = this;
            }
        }
    }

    static Ended first;
    static ByteArrayOutputStream output;
    static ByteArrayOutputStream errors;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        Exit.setExitProcedure((code, message) -> { throw new Ended(code); });
        Exit.setHaltProcedure((code, message) -> { throw new Ended(code); });
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = json.readTree(line);
            first = null;
            output = new ByteArrayOutputStream();
            errors = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(command.get("stdin").asText())));
            System.setOut(new PrintStream(output, true));
            System.setErr(new PrintStream(errors, true));
            run(command);
            Map<String, Object> told = Map.of("code", first.code, "out", first.output, "err", first.errors);
            answers.println(json.writeValueAsString(Map.of("ok", told)));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static void run(JsonNode command) throws Exception {
        List<String> arguments = new ArrayList<>();
        command.get("arguments").forEach(each -> arguments.add(each.asText()));
        try {
            var main = Class.forName(command.get("main").asText()).getMethod("main", String[].class);
            main.invoke(null, (Object) arguments.toArray(new String[0]));
            new Ended(0);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace();
                new Ended(1);
            }
        }
    }
}
