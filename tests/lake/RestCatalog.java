import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog on a free port of this machine, over SQLite. Arguments: database, warehouse. Prints its port. */
public class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        var catalog = CatalogUtil.loadCatalog(JdbcCatalog.class.getName(), "rest", Map.of(
                CatalogProperties.URI, "jdbc:sqlite:" + arguments[0],
                CatalogProperties.WAREHOUSE_LOCATION, arguments[1],
                "jdbc.schema-version", "V1"), new Configuration());
        var handler = new ServletContextHandler();
        handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        var server = new Server(new InetSocketAddress("127.0.0.1", 0));
        server.setHandler(handler);
        server.start();
        System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
        System.in.read();
        server.stop();
    }
}
